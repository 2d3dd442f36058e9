"""A primary and its replicas under the eyes of real sentinels, each a process of its own.

Sentinel has its members write down who follows whom (CONFIG REWRITE) and finds them where they were, so a member has a
configuration file and keeps its port from one start to the next.  Whatever takes time is waited for, never slept over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from tests.support.certificates import Certificates
from tests.support.raw import RawClient, Word
from tests.support.replicas import info
from tests.support.servers import RedisServer, RiverbedServer, Server, StartError, free_port
from tests.support.tls import TlsClient, TlsRiverbed, client_context

NAME: Final = "stream-store"  # of the group, as sentinels call it
QUORUM: Final = 2
# Longer than the second between two looks at a replica, so that the replica that is furthest ahead is known when one is
# chosen; and than a busy machine may let a server stand still, which is not to be taken for dead.
DOWN_AFTER_MS: Final = 10_000
FAILOVER_TIMEOUT_MS: Final = 10_000
PATIENCE_S: Final = 240.0


class _Settled(Server):
    """A server that is started from a file, on the port it had before."""

    def __init__(self, directory: Path, log_directory: Path, options: Mapping[str, object] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, log_directory, options)
        self.file = directory.with_suffix(".conf")
        self._was_ready = False

    def choose_port(self) -> int:
        return self.port if self._was_ready else free_port()

    def command(self) -> list[str]:
        if not self._was_ready:  # from then on the file is the server's own
            self.file.write_text("".join(f"{name} {value}\n" for name, value in self.settings().items()))
        return [*self.program(), str(self.file)]

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        super().wait_ready(timeout_s)
        self._was_ready = True

    # -- what Sentinel sees

    def follows(self, primary: Server) -> bool:
        """Whether this is a replica of `primary` whose link is up."""
        now = info(self)
        return (now["role"], now.get("master_port"), now.get("master_link_status")) == (
            *("slave", str(primary.port), "up"),
        )


class RiverbedMember(_Settled, RiverbedServer):
    """Ours."""


class RedisMember(_Settled, RedisServer):
    """A real Redis."""


class TlsMember(_Settled, TlsRiverbed):
    """Ours, with TLS alone, for clients and replicas."""

    def __init__(self, directory: Path, log_directory: Path, certificates: Certificates) -> None:
        super().__init__(directory, log_directory, {"tls-replication": "yes"})
        self.certificates = certificates


Member = RiverbedMember | RedisMember | TlsMember


class SentinelServer(_Settled):
    """One sentinel: redis-server under its other name; with TLS alone when the member that it watches has it."""

    name = "redis-sentinel"

    def __init__(self, directory: Path, log_directory: Path, watched: Member) -> None:
        super().__init__(directory, log_directory)
        self._watched = watched

    def client(self, *, timeout_s: float = 60.0) -> RawClient:
        watched = self._watched
        if not isinstance(watched, TlsMember):
            return super().client(timeout_s=timeout_s)
        own = client_context(watched.certificates, watched.certificates.client)
        return TlsClient(self.port, own, timeout_s=timeout_s)

    def program(self) -> list[str]:
        return RedisServer.program(self._watched)

    def settings(self) -> dict[str, object]:
        return {
            **self._ports(),
            "bind": "127.0.0.1",
            "dir": self.directory,
            "sentinel monitor": f"{NAME} 127.0.0.1 {self._watched.port} {QUORUM}",
            "sentinel down-after-milliseconds": f"{NAME} {DOWN_AFTER_MS}",
            "sentinel failover-timeout": f"{NAME} {FAILOVER_TIMEOUT_MS}",
            "sentinel parallel-syncs": f"{NAME} 1",
        }

    def _ports(self) -> dict[str, object]:
        if not isinstance(self._watched, TlsMember):
            return {"port": self.port}
        files = self._watched.certificates.settings()
        return {"port": 0, "tls-port": self.port, "tls-replication": "yes", **files}

    def command(self) -> list[str]:
        return [*super().command(), "--sentinel"]

    def look(self, *words: Word) -> list[dict[str, str]]:
        """SENTINEL MASTER, REPLICAS or SENTINELS: a dictionary for each."""
        with self.client(timeout_s=60) as client:
            found = client.tree("SENTINEL", *words)
        rows = [found] if found.children and found.children[0].children is None else found.children or ()
        return [{name.text.decode(): value.text.decode() for name, value in row.pairs()} for row in rows]

    def primary_port(self) -> int:
        """Where this sentinel sends clients."""
        with self.client(timeout_s=60) as client:
            address = client.tree("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        assert address.children is not None
        return int(address.children[1].text)


class Watched:
    """One primary, its replicas, three sentinels.  A context manager that stops what it started."""

    def __init__(self, members: Sequence[Member], directory: Path) -> None:
        self.members = list(members)
        self._directory = directory
        self.sentinels: list[SentinelServer] = []
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            first, *others = self.members
            starting.enter_context(first)
            for member in others:
                member.options["replicaof"] = f"127.0.0.1 {first.port}"
                starting.enter_context(member)
            for member in others:
                self.until(lambda member=member: member.follows(first), f"{member.port} follows {first.port}")
            for number in range(3):
                sentinel = SentinelServer(self._directory / f"sentinel-{number}", self._directory / "logs", first)
                self.sentinels.append(starting.enter_context(sentinel))
            self.until(self._is_known, "every sentinel knows all servers")
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()

    def _is_known(self) -> bool:
        return all(self._knows_all(sentinel) for sentinel in self.sentinels)

    def _knows_all(self, sentinel: SentinelServer) -> bool:
        (master,) = sentinel.look("MASTER", NAME)
        others, sentinels = len(self.members) - 1, len(self.sentinels) - 1
        if (master["num-slaves"], master["num-other-sentinels"]) != (str(others), str(sentinels)):
            return False
        replicas = sentinel.look("REPLICAS", NAME)
        return all(replica["flags"] == "slave" and replica["master-link-status"] == "ok" for replica in replicas)

    # -- whom it is about

    def at(self, port: int) -> Member:
        return next(member for member in self.members if member.port == port)

    def primary(self) -> Member | None:
        """The member that all sentinels send clients to and that takes itself for a primary; None while they differ."""
        ports = {sentinel.primary_port() for sentinel in self.sentinels}
        if len(ports) > 1:
            return None
        member = self.at(*ports)
        return member if member.process is not None and info(member)["role"] == "master" else None

    def others(self, member: Member) -> list[Member]:
        return [one for one in self.members if one is not member]

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds; fails with all logs when that takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if holds():
                    return
            except OSError:  # a server does not listen yet, or no longer
                pass
            if time.monotonic() > deadline:
                logs = "\n".join(server.log_tail(2000) for server in (*self.members, *self.sentinels))
                raise StartError(f"not within {PATIENCE_S:.0f} s: {what}\n{logs}")
            time.sleep(0.05)

    # -- clients

    def client_for_primary(self) -> redis.Redis:
        """A redis-py client that asks the sentinels where the primary is, each time that it connects.

        It sends nothing twice: what became of a request whose reply got lost is for the ledger to judge.
        """
        once = Retry(NoBackoff(), 0)
        addresses = [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]
        asking = {"socket_timeout": 10.0, "retry": once}
        first = self.members[0]
        files: dict[str, object] = {}
        if isinstance(first, TlsMember):
            own, authority = first.certificates.client, first.certificates.authority
            files = {"ssl": True, "ssl_ca_certs": str(authority.cert)}
            files |= {"ssl_certfile": str(own.cert), "ssl_keyfile": str(own.key)}
        sentinel = Sentinel(addresses, sentinel_kwargs=asking | files, socket_timeout=10.0, retry=once, **files)
        return sentinel.master_for(NAME)

    def ask_sentinel(self, *words: Word) -> bytes:
        with self.sentinels[0].client(timeout_s=60) as client:
            return client.ask("SENTINEL", *words)
