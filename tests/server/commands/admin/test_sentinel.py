"""What Sentinel sends, word by word as it was seen to, beside redis-server: same replies, and the same in the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import broken_invariants
from tests.support.pair import Pair
from tests.support.raw import encode
from tests.support.replicas import info
from tests.support.sentinels import Member, RedisMember, RiverbedMember
from tests.support.servers import free_port

PROMOTE = "SLAVEOF NO ONE"


def reconfigure(order: str) -> list[str]:
    """Sentinel sends these in one piece, and is closed to nobody but itself by them."""
    return ["MULTI", order, "CONFIG REWRITE", "CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub", "EXEC"]


class Stage:
    """One of ours and a real one, both with a configuration file, and connections to both."""

    def __init__(self, ours: Member, theirs: Member) -> None:
        self.ours = ours
        self.theirs = theirs
        self.both = (ours, theirs)
        self._pairs: list[Pair] = []

    def connect(self) -> Pair:
        pair = Pair(self.ours.client(), self.theirs.client())
        self._pairs.append(pair)
        return pair

    def hang_up(self) -> None:
        for pair in self._pairs:
            pair.ours.close()
            pair.theirs.close()

    def kill_and_start(self) -> None:
        for member in self.both:
            member.kill()
            member.start()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    ours = RiverbedMember(tmp_path / "ours", tmp_path / "logs", {"maxclients": 99})
    theirs = RedisMember(tmp_path / "theirs", tmp_path / "logs", {"maxclients": 99})
    with ours, theirs:
        stage = Stage(ours, theirs)
        yield stage
        stage.hang_up()
        ours.stop()
    assert broken_invariants(ours.directory) == []


def send_all(pair: Pair, lines: list[str]) -> list[bytes]:
    """The replies to commands that arrive in one piece, the same from both."""
    for client in (pair.ours, pair.theirs):
        client.send_bytes(b"".join(encode(line.split()) for line in lines))
    replies = [pair.ours.reply() for _ in lines]
    assert replies == [pair.theirs.reply() for _ in lines]
    return replies


def settings_in(member: Member, name: str) -> list[str]:
    return [line for line in member.file.read_text().splitlines() if line.startswith(name)]


def test_a_promotion_is_one_transaction_and_closes_everybody_else(stage: Stage) -> None:
    sentinel, normal, subscriber = stage.connect(), stage.connect(), stage.connect()
    normal.say("PING")
    subscriber.say("SUBSCRIBE __sentinel__:hello")
    sentinel.say("CLIENT SETNAME sentinel-0123abcd-cmd")
    assert sentinel.say("PUBLISH __sentinel__:hello 127.0.0.1,26379,id,0,name,127.0.0.1,6379,0") == b":1\r\n"
    for client in (subscriber.ours, subscriber.theirs):
        assert b"__sentinel__:hello" in client.reply()
    replies = send_all(sentinel, reconfigure(PROMOTE))
    assert replies == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 4, b"*4\r\n+OK\r\n+OK\r\n:1\r\n:1\r\n"]
    for pair in (normal, subscriber):
        assert pair.ours.rest_until_closed() == pair.theirs.rest_until_closed() == b""
    sentinel.say("PING")


def test_the_order_to_follow_is_kept_in_the_file_until_the_next(stage: Stage) -> None:
    nobody = free_port()
    for member in stage.both:
        with member.file.open("a") as file:
            file.write("# a word to whoever reads this\n")
    order = reconfigure(f"SLAVEOF 127.0.0.1 {nobody}")
    assert send_all(stage.connect(), order)[-1] == b"*4\r\n+OK\r\n+OK\r\n:0\r\n:0\r\n"
    for member in stage.both:
        assert settings_in(member, "replicaof") == [f"replicaof 127.0.0.1 {nobody}"]
        assert settings_in(member, "# a word") == ["# a word to whoever reads this"]
        assert settings_in(member, "maxclients") == ["maxclients 99"]
    for _ in range(2):  # at once, and from the file
        for member in stage.both:
            assert (info(member)["role"], info(member)["master_port"]) == ("slave", str(nobody))
        stage.kill_and_start()
    assert send_all(stage.connect(), reconfigure(PROMOTE))[-1] == b"*4\r\n+OK\r\n+OK\r\n:0\r\n:0\r\n"
    stage.kill_and_start()
    for member in stage.both:
        assert settings_in(member, "replicaof") == []
        assert info(member)["role"] == "master"


@pytest.mark.parametrize("command", ["SLAVEOF", "REPLICAOF"])
def test_orders_of_odd_shape_are_answered_as_by_redis(stage: Stage, command: str) -> None:
    pair = stage.connect()
    for words in ("", "NO", "no one x", "h x", "h 99999", "h -1", "h 0", "no one", "NO ONE"):
        pair.say(f"{command} {words}")


def test_sentinel_reads_the_same_fields_of_a_replica(stage: Stage) -> None:
    """Those it takes from INFO, and those it needs to choose whom to promote."""
    stage.connect().say(f"SLAVEOF 127.0.0.1 {free_port()}")
    read = (
        *("role", "master_host", "master_port", "master_link_status"),
        *("slave_priority", "replica_announced", "slave_read_only"),
    )
    ours, theirs = ({name: info(member)[name] for name in read} for member in stage.both)
    assert ours == theirs
    for member in stage.both:
        now = info(member)
        assert int(now["slave_repl_offset"]) >= 0
        assert int(now["master_link_down_since_seconds"]) >= -1
