"""Looking at primaries and replicas: what they say of each other, and whether they have come to the same offset."""

from __future__ import annotations

import contextlib

from tests.support.raw import RawClient
from tests.support.servers import Server
from tests.support.waiting import until


def info(server: Server, section: str = "replication") -> dict[str, str]:
    """A section of INFO."""
    with server.client(timeout_s=60) as client:
        return client.info(section)


def follow(replica: Server, port: int) -> None:
    """Have `replica` follow the server on that port, and wait until it does."""
    with replica.client() as client:
        assert client.ask("REPLICAOF", "127.0.0.1", port).startswith(b"+OK")
    until_linked(replica)


def is_linked(replica: Server) -> bool:
    with contextlib.suppress(OSError):
        return info(replica).get("master_link_status") == "up"
    return False


def until_linked(replica: Server) -> None:
    until(lambda: is_linked(replica), f"the link of a replica to its primary\n{replica.log_tail()}")


def until_down(replica: Server) -> None:
    until(lambda: info(replica)["master_link_status"] == "down", "the end of a replica's link")


def offset_of(server: Server) -> int:
    return int(info(server)["master_repl_offset"])


def until_level(primary: Server, *replicas: Server) -> None:
    """Wait until the replicas are at the primary's offset; nobody may write meanwhile.

    A primary pings now and then, so it is asked before and after.
    """

    def is_level(replica: Server) -> bool:
        before = offset_of(primary)
        return is_linked(replica) and offset_of(replica) == before == offset_of(primary)

    for replica in replicas:
        until(lambda replica=replica: is_level(replica), f"a replica at its primary's offset\n{replica.log_tail()}")


def syncs(primary: Server) -> tuple[int, int, int]:
    """Full syncs, partial ones, and those that were refused."""
    found = info(primary, "stats")
    return int(found["sync_full"]), int(found["sync_partial_ok"]), int(found["sync_partial_err"])


def fill(client: RawClient, key: str, count: int, size: int = 10) -> None:
    """Append `count` entries of about `size` bytes."""
    for start in range(0, count, 1000):
        commands = [("XADD", key, "*", "f", "x" * size) for _ in range(start, min(start + 1000, count))]
        client.pipeline(commands)
