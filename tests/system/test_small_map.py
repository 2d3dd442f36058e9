"""A server with a small `lmdb-map-size`: refuse in time, keep reading, make room by trimming, go on, and start again.

Entries that go to many streams in any order are what takes most: a checkpoint copies nearly every page then.
"""

from __future__ import annotations

import random

from tests.conftest import StartRiverbed, broken_invariants
from tests.support.raw import RawClient
from tests.support.replicas import follow, info, offset_of, until_level, until_linked
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

MAP_BYTES = 32 << 20
STREAMS = 20_000
NEARLY_FULL = (
    b"-MISCONF The tables have nearly reached lmdb-map-size. Commands that need space are refused until there is some "
    b"again, or a restart with a larger one; reading, deleting and trimming go on.\r\n"
)
# Far more than fits: a server that never refuses does not see its bound.
MOST_PIPELINES = 2_000


def fill(client: RawClient, seed: int = 0) -> tuple[int, set[bytes]]:
    """Append to many streams in any order until all of a pipeline is refused; -> how many entries, and the errors."""
    pick, count, errors = random.Random(seed), 0, set()
    for _ in range(MOST_PIPELINES):
        adds = [("XADD", f"s{pick.randrange(STREAMS)}", "*", "f", "x" * pick.choice((5, 20, 60))) for _ in range(500)]
        replies = client.pipeline(adds)
        refused = [reply for reply in replies if reply.startswith(b"-")]
        errors |= set(refused)
        count += len(replies) - len(refused)
        if len(refused) == len(replies):
            return count, errors
    raise AssertionError("nothing was refused")


def used_bytes(server: RiverbedServer) -> int:
    return int(info(server, "persistence")["riverbed_lmdb_used_bytes"])


def test_tables_that_are_nearly_full_lose_nothing_and_have_room_after_trimming(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"lmdb-map-size": MAP_BYTES, "checkpoint-interval-ms": 100})
    with server.client() as client:
        count, errors = fill(client)
        assert errors == {NEARLY_FULL}
        assert MAP_BYTES // 4 < used_bytes(server) <= MAP_BYTES
        client.ask("SAVE")
        assert info(server, "persistence")["rdb_last_bgsave_status"] == "ok"
        assert client.ask("XADD", "s1", "*", "f", "v") == NEARLY_FULL
    server.kill()
    server.spawn()
    server.wait_ready(30)
    with server.client() as client:
        lengths = client.pipeline([("XLEN", f"s{number}") for number in range(STREAMS)])
        assert sum(int(length[1:]) for length in lengths) == count
        trimmed = client.pipeline([("XTRIM", f"s{number}", "MAXLEN", "1") for number in range(STREAMS)])
        assert sum(int(number[1:]) for number in trimmed) == count - sum(length != b":0\r\n" for length in lengths)
        again, errors = fill(client, 1)
        assert (again > count // 4, errors) == (True, {NEARLY_FULL})
    assert server.stop() == 0
    assert broken_invariants(server.directory) == []


def test_a_transaction_beyond_all_bounds_can_be_deleted_again(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"lmdb-map-size": 16 << 20, "maxmemory-clients": 0})
    count = 75
    with server.client() as client:
        adds = [("XADD", f"s{number}", "1-1", "f", "x" * 4_000_000) for number in range(count)]
        assert client.pipeline([("MULTI",), *adds, ("EXEC",)])[-1].startswith(b"*%d\r\n" % count)
        assert used_bytes(server) > 280 << 20  # of 320 MB that are mapped for 16
        until(lambda: info(server, "persistence")["riverbed_writes_refused"] == "1", "tables that are nearly full")
        left = [f"s{number}" for number in range(count)]
        while left:  # a commit that finds no room has the map grow
            replies = client.pipeline([("DEL", key) for key in left])
            assert {reply[:9] for reply in replies} <= {b":1\r\n", b"-MISCONF "}
            assert replies.count(b":1\r\n") >= len(left) // 2
            left = [key for key, reply in zip(left, replies, strict=True) if reply != b":1\r\n"]
        until(lambda: not client.ask("XADD", "s", "1-1", "f", "v").startswith(b"-"), "room")
    assert server.stop() == 0


def test_a_smaller_setting_than_the_file_leaves_room_for_trimming(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"lmdb-map-size": 1 << 30})
    with server.client() as client:
        for _ in range(400):
            client.pipeline([("XADD", f"s{number}", "*", "f", "x" * 1000) for number in range(1000)])
    server.options["lmdb-map-size"] = 16 << 20
    server.kill()
    server.spawn()
    server.wait_ready(60)
    with server.client() as client:
        assert used_bytes(server) > 400 << 20
        until(lambda: client.ask("XADD", "s", "*", "f", "v").startswith(b"-MISCONF The tables have nearly"), "refusals")
        trimmed = client.pipeline([("XTRIM", f"s{number}", "MAXLEN", "1") for number in range(1000)])
        assert sum(int(reply[1:]) for reply in trimmed) == 399_000
        until(lambda: not client.ask("XADD", "s", "*", "f", "v").startswith(b"-"), "room")
    server.kill()
    server.spawn()
    server.wait_ready(60)
    assert server.stop() == 0
    assert broken_invariants(server.directory) == []


def test_a_replica_with_nearly_full_tables_follows_so_that_trimming_reaches_it(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed(options={"lmdb-map-size": MAP_BYTES // 2})
    follow(replica, primary.port)
    until_linked(replica)
    with primary.client() as client, replica.client() as reader:
        client.pipeline([("XADD", "s", "*", "f", "x" * 10_000)] * (MAP_BYTES // 20_000))
        until_level(primary, replica)
        until(lambda: info(replica, "persistence")["riverbed_writes_refused"] == "1", "tables that are nearly full")
        client.ask("XADD", "s", "*", "f", "v")
        client.ask("XTRIM", "s", "MAXLEN", "1")
        until_level(primary, replica)
        assert reader.ask("XLEN", "s") == b":1\r\n"
        until(lambda: info(replica, "persistence")["riverbed_writes_refused"] == "0", "room")


def test_a_primary_with_nearly_full_tables_lets_its_replicas_hear_of_it(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed(options={"lmdb-map-size": MAP_BYTES // 2, "repl-ping-replica-period": 1})
    replica = start_riverbed()
    follow(replica, primary.port)
    until_linked(replica)
    with primary.client() as client:
        is_over = False
        while not is_over:
            # few at a time: what waits for a checkpoint counts as well, and the refusal would end behind it
            replies = client.pipeline([("XADD", "s", "*", "f", "x" * 10_000)] * 20)
            client.ask("SAVE")
            is_over = replies[-1] == NEARLY_FULL
        before = offset_of(primary)
        until(lambda: offset_of(primary) > before + 14, "two pings")  # or links are given up after `repl-timeout`
        assert client.ask("XADD", "s", "*", "f", "v") == NEARLY_FULL
    until_level(primary, replica)
