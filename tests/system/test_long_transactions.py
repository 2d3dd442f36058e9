"""Kills, stops, hang-ups and replicas in the middle of a long transaction: it is there whole, or not at all."""

from __future__ import annotations

import contextlib
import select
import signal
from collections.abc import Callable

import pytest

from tests.conftest import StartRiverbed
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

COUNT = 30_000
WHOLE = b":%d\r\n" % COUNT
NOTHING = b":0\r\n"
TIMES = 20


def begin(client: RawClient, key: str) -> None:
    """Send EXEC of a long transaction, and do not wait for the reply."""
    client.ask("MULTI")
    client.pipeline([["XADD", key, "*", "f", "v"]] * COUNT)
    client.send("EXEC")


def is_under_way(client: RawClient, other: RawClient) -> bool:
    """Whether the transaction of this client has begun and was under way when another one was answered."""
    for _ in range(3):  # the first answer may be of the tick before, the second of the turn in which the EXEC came
        other.ask("PING")
    return not select.select([client.socket], [], [], 0)[0]


def in_the_middle(server: RiverbedServer, disturb: Callable[[RawClient], None]) -> None:
    """Disturb transactions until one of them was under way; its key is `s`, and there is no other key."""
    for _ in range(TIMES):
        with contextlib.closing(server.client()) as client, contextlib.closing(server.client()) as other:
            other.ask("FLUSHALL")
            begin(client, "s")
            if is_under_way(client, other):
                disturb(client)
                return
            client.reply()
    pytest.fail(f"none of {TIMES} transactions was seen under way")


def test_a_kill_in_the_middle_leaves_nothing_of_it(riverbed: RiverbedServer) -> None:
    in_the_middle(riverbed, lambda client: riverbed.kill())
    with riverbed.start().client() as client:
        assert client.ask("XLEN", "s") == NOTHING


def test_a_stop_in_the_middle_waits_for_its_end(riverbed: RiverbedServer) -> None:
    def stop(client: RawClient) -> None:
        assert riverbed.process is not None
        riverbed.process.send_signal(signal.SIGTERM)
        assert client.reply().startswith(b"*%d\r\n" % COUNT)
        assert riverbed.wait_ended() == 0

    in_the_middle(riverbed, stop)
    with riverbed.start().client() as client:
        assert client.ask("XLEN", "s") == WHOLE


def test_a_client_that_hangs_up_in_the_middle_has_it_done(riverbed: RiverbedServer) -> None:
    in_the_middle(riverbed, lambda client: client.close())
    with riverbed.client() as other:
        assert other.ask("XLEN", "s") == WHOLE


@pytest.mark.parametrize("command", ["BGREWRITEAOF", "SAVE", "RIVERBED SNAPSHOT", "BGSAVE"])
def test_what_copies_the_store_in_the_middle_has_it_whole(riverbed: RiverbedServer, command: str) -> None:
    with riverbed.client() as other:
        in_the_middle(riverbed, lambda client: other.send(*command.split()))
        assert other.reply()[:1] != b"-"
        until(lambda: b"aof_rewrite_in_progress:0" in other.ask("INFO", "persistence"), "the end of the rewrite")
    riverbed.kill()
    with riverbed.start().client() as client:
        assert client.ask("XLEN", "s") == WHOLE


def test_a_replica_shows_all_of_it_or_nothing(riverbed: RiverbedServer, start_riverbed: StartRiverbed) -> None:
    replica = start_riverbed(options={"replicaof": f"127.0.0.1 {riverbed.port}"})
    seen = []
    with replica.client() as reader:
        until(lambda: b"master_link_status:up" in reader.ask("INFO", "replication"), "the link")

        def look(client: RawClient) -> None:
            seen.append(reader.ask("XLEN", "s"))
            client.reply()
            until(lambda: seen.append(reader.ask("XLEN", "s")) or seen[-1] == WHOLE, "the transaction on the replica")

        in_the_middle(riverbed, look)
    assert set(seen) == {NOTHING, WHOLE}
