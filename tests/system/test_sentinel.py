"""Sentinel, the real one, over Riverbed: it finds the replicas, moves the primary when asked, and when it must.

The ledger of the last test holds only what WAIT has confirmed for promised.  One confirmation is enough: two sentinels
agree on the replica that is furthest ahead, and what one replica has confirmed that replica has.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as NoReply

from tests.conftest import broken_invariants
from tests.support.certificates import Certificates
from tests.support.faults.ledger import Account, Add, Fate, Ledger, read_id
from tests.support.faults.producers import read_streams
from tests.support.replicas import info
from tests.support.sentinels import NAME, RiverbedMember, TlsMember, Watched

WRITERS = 3
WRITES_BEFORE = 200  # of each writer, before anything happens
WRITES_AFTER = 100


class Writer(threading.Thread):
    """Appends to a stream of its own and one of all, has a replica confirm each entry, and follows the primary.

    An entry counts as acknowledged when WAIT has confirmed it, and as unknown when it was merely appended.
    """

    def __init__(self, client: redis.Redis, account: Account) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.account = account
        self.confirmed = 0
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self.stopping.is_set():
                    return
                stream = b"all" if number % 4 == 0 else b"of-" + self.account.name
                if not self.write(Add(stream, b"%b-%d" % (self.account.name, number))):
                    time.sleep(0.02)
        except BaseException as error:  # whatever it is, the test must see it
            self.error = error

    def write(self, add: Add) -> bool:
        """Append one entry -> whether it was confirmed."""
        self.account.adds.append(add)
        try:
            with self.client.pipeline(transaction=False) as batch:
                batch.xadd(add.stream, {"payload": add.payload})
                batch.execute_command("WAIT", 1, 2000)
                entry_id, replicas = batch.execute(raise_on_error=False)
        except (LostConnection, NoReply):
            return False
        if isinstance(entry_id, ResponseError):
            add.fate = Fate.FAILED
            return False
        if isinstance(entry_id, RedisError):
            return False
        add.entry_id = read_id(entry_id)
        if isinstance(replicas, int) and replicas >= 1:
            add.fate = Fate.ACKNOWLEDGED
            self.confirmed += 1
        return add.fate is Fate.ACKNOWLEDGED


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A primary and two replicas of ours under three sentinels; every store is checked afterwards."""
    members = [RiverbedMember(tmp_path / f"member-{number}", tmp_path / "logs") for number in range(3)]
    with Watched(members, tmp_path) as watched:
        yield watched
        for member in members:
            if member.process is not None:
                member.stop()
    for member in members:
        assert broken_invariants(member.directory) == []


def test_a_killed_primary_is_replaced_over_tls_without_losing_what_was_confirmed(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "certificates")
    members = [TlsMember(tmp_path / f"member-{number}", tmp_path / "logs", certificates) for number in range(3)]
    with Watched(members, tmp_path) as watched:
        test_a_killed_primary_is_replaced_without_losing_what_was_confirmed(watched)
        for member in members:
            member.stop()
    for member in members:
        assert broken_invariants(member.directory) == []


def start_writers(watched: Watched, ledger: Ledger) -> list[Writer]:
    writers = [Writer(watched.client_for_primary(), ledger.account(b"w%d" % number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    return writers


def each_confirms(watched: Watched, writers: list[Writer], count: int) -> None:
    """Return when each writer has had `count` more entries confirmed."""
    goals = [(writer, writer.confirmed + count) for writer in writers]

    def reached() -> bool:
        for writer in writers:
            if writer.error is not None:
                raise writer.error
        return all(writer.confirmed >= goal for writer, goal in goals)

    watched.until(reached, f"each writer has {count} more entries confirmed")


def finish(writers: list[Writer]) -> None:
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive(), "a writer hangs"
        if writer.error is not None:
            raise writer.error


def assert_all_agree(watched: Watched, ledger: Ledger) -> None:
    """The primary keeps the ledger's word, and every replica comes to hold what the primary holds."""
    primary = watched.primary()
    assert primary is not None
    contents = read_streams(primary, ledger.streams())
    assert list(ledger.verify(contents)) == []
    for member in watched.others(primary):
        watched.until(lambda member=member: member.follows(primary), f"{member.port} follows {primary.port}")
        watched.until(
            lambda member=member: read_streams(member, ledger.streams()) == contents,
            f"{member.port} holds what {primary.port} holds",
        )


def test_sentinel_finds_the_replicas_and_each_other(watched: Watched) -> None:
    first, *others = watched.members
    for sentinel in watched.sentinels:
        assert {int(row["port"]) for row in sentinel.look("REPLICAS", NAME)} == {member.port for member in others}
        (about,) = sentinel.look("MASTER", NAME)
        assert (int(about["port"]), about["flags"], about["role-reported"]) == (first.port, "master", "master")
        assert watched.ask_sentinel("CKQUORUM", NAME).startswith(b"+OK 3 usable Sentinels")
    for row in watched.sentinels[0].look("REPLICAS", NAME):
        assert (row["role-reported"], row["master-link-status"], row["slave-priority"]) == ("slave", "ok", "100")
        assert (row["master-host"], int(row["master-port"])) == ("127.0.0.1", first.port)


def test_a_failover_by_hand_loses_nothing_confirmed_and_everybody_follows(watched: Watched) -> None:
    first = watched.primary()
    assert first is not None
    for sentinel in watched.sentinels:  # a restart that takes long on a busy machine is no reason for a second one
        with sentinel.client() as client:
            assert client.ask("SENTINEL", "SET", NAME, "down-after-milliseconds", 240_000) == b"+OK\r\n"
    ledger = Ledger()
    writers = start_writers(watched, ledger)
    each_confirms(watched, writers, WRITES_BEFORE)
    # Sentinel promotes first and tells the former primary later; what that one takes in between is lost
    with first.client() as client:
        assert client.ask("CLIENT", "PAUSE", 240_000, "WRITE") == b"+OK\r\n"
    watched.until(lambda: watched.ask_sentinel("FAILOVER", NAME) == b"+OK\r\n", "a failover begins")
    watched.until(lambda: watched.primary() not in (None, first), "a replica is the primary")
    each_confirms(watched, writers, WRITES_AFTER)
    finish(writers)
    assert_all_agree(watched, ledger)
    second = watched.primary()
    assert second is not None
    # it is written down: a restart changes nothing
    second.restart()
    assert info(second)["role"] == "master"
    watched.until(lambda: first.follows(second), "the former primary follows the restarted one")
    first.restart()
    watched.until(lambda: first.follows(second), "the former primary, restarted, is a replica from the start")


def test_a_killed_primary_is_replaced_without_losing_what_was_confirmed(watched: Watched) -> None:
    first = watched.primary()
    assert first is not None
    ledger = Ledger()
    writers = start_writers(watched, ledger)
    each_confirms(watched, writers, WRITES_BEFORE)
    first.kill()
    watched.until(lambda: watched.primary() not in (None, first), "a replica is the primary")
    each_confirms(watched, writers, WRITES_AFTER)
    first.start()
    second = watched.primary()
    assert second is not None
    watched.until(lambda: first.follows(second), "the killed primary is back as a replica")
    each_confirms(watched, writers, WRITES_AFTER)
    finish(writers)
    assert ledger.count(Fate.ACKNOWLEDGED) >= WRITERS * (WRITES_BEFORE + 2 * WRITES_AFTER)
    assert_all_agree(watched, ledger)
