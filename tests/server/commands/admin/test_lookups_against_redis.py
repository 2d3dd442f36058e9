"""`keyspace_hits` and `keyspace_misses` of INFO beside Redis: which commands look for a key, and how often.

Redis looks twice for each stream of XREAD and XREADGROUP, and once where it refuses XREADGROUP; a read that has waited
is not counted again.  One difference is left: `test_xread_with_a_bad_id_counts_no_lookup`.
"""

from __future__ import annotations

import pytest

from tests.support.raw import RawClient, Word
from tests.support.servers import RedisServer, RiverbedServer
from tests.support.waiting import until_blocked

COMMANDS = [
    *("XLEN s", "XLEN no", "XRANGE s - +", "XRANGE no - +", "XRANGE s - + COUNT 0", "XRANGE s + -", "XRANGE s x y"),
    *("XRANGE s - + COUNT 1", "XRANGE no - + COUNT 1", "XREVRANGE s + -", "XREVRANGE no + - COUNT 1", "XRANGE e - +"),
    *("XREAD STREAMS s 0", "XREAD STREAMS no 0", "XREAD STREAMS s no s 0 0 $", "XREAD COUNT 1 STREAMS s s 0 0"),
    *("XREAD STREAMS no $", "XREAD BLOCK 1 STREAMS s $", "XREAD BLOCK 1 STREAMS s no $ $", "XREAD STREAMS e 0"),
    *("XREADGROUP GROUP g c STREAMS s >", "XREADGROUP GROUP g c STREAMS s 0", "XREADGROUP GROUP g c STREAMS no >"),
    *("XREADGROUP GROUP g c COUNT 1 STREAMS s >", "XREADGROUP GROUP g c COUNT 1 STREAMS s 0"),
    *("XREADGROUP GROUP g c COUNT 2 STREAMS s >", "XREADGROUP GROUP g c COUNT 1 NOACK STREAMS s >"),
    *("XREADGROUP GROUP g c COUNT 1 STREAMS e >", "XREADGROUP GROUP g c BLOCK 1 COUNT 1 STREAMS e >"),
    *("XREADGROUP GROUP nog c STREAMS s >", "XREADGROUP GROUP nog c COUNT 1 STREAMS s >"),
    *("XREADGROUP GROUP g c COUNT 1 STREAMS no >", "XREADGROUP GROUP g c STREAMS s no > >"),
    *("XREADGROUP GROUP g c STREAMS s s > 0", "XREADGROUP GROUP g new STREAMS s >"),
    *("XPENDING s g", "XPENDING no g", "XPENDING s nog", "XPENDING s g - + 10", "XPENDING s g - + 10 c"),
    *("XPENDING no g - + 10", "XPENDING s g x y 10", "XINFO STREAM s", "XINFO STREAM no", "XINFO STREAM s FULL"),
    *("XINFO GROUPS s", "XINFO GROUPS no", "XINFO CONSUMERS s g", "XINFO CONSUMERS no g", "XINFO CONSUMERS s nog"),
    *("XACK s g 1-1", "XACK s g 9-9", "XACK no g 1-1", "XACK s nog 1-1", "XACK s g x", "XACK s g 1-1 2-1 3-1"),
    *("XCLAIM s g c 0 1-1", "XCLAIM s g c 0 9-9", "XCLAIM no g c 0 1-1", "XCLAIM s nog c 0 1-1"),
    *("XCLAIM s g c 0 1-1 JUSTID", "XCLAIM s g c x 1-1", "XCLAIM s g c 0 1-1 2-1 FORCE"),
    *("XAUTOCLAIM s g c 0 0", "XAUTOCLAIM no g c 0 0", "XAUTOCLAIM s nog c 0 0", "XAUTOCLAIM s g c 0 x"),
    *("XADD s 4-1 f v", "XADD no NOMKSTREAM * f v", "XDEL s 1-1", "XDEL no 1-1", "XTRIM s MAXLEN 1", "XSETID s 9-1"),
    *("XGROUP CREATE s h $", "XGROUP CREATE no h $", "XGROUP SETID s g $", "XGROUP DESTROY s g"),
    *("COPY s t", "COPY no t", "COPY s e", "COPY s e REPLACE", "COPY s s", "RENAME s t", "RENAME no t", "MOVE no 1"),
    *("EXISTS s no s", "TYPE s", "TYPE no", "TTL s", "PTTL no", "TOUCH s no", "OBJECT ENCODING s", "EXPIRE s 100"),
    *("PERSIST no", "DEL s", "UNLINK no", "WATCH s no", "KEYS *", "SCAN 0", "SCAN 0 TYPE stream", "SCAN 0 TYPE list"),
    *("SCAN 0 MATCH s* TYPE stream", "SCAN 0 MATCH s* TYPE list", "SCAN 0 MATCH x TYPE stream", "RANDOMKEY"),
]


def lookups(client: RawClient) -> tuple[int, int]:
    """Hits and misses so far."""
    found = client.info("stats")
    return int(found["keyspace_hits"]), int(found["keyspace_misses"])


def begin(client: RawClient) -> None:
    """`s` has three entries, one of them delivered; `e` is empty."""
    client.ask("FLUSHALL")
    client.pipeline([["XADD", "s", f"{number}-1", "f", "v"] for number in range(1, 4)])
    client.ask("XGROUP", "CREATE", "s", "g", 0)
    client.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    client.ask("XGROUP", "CREATE", "e", "g", "$", "MKSTREAM")
    client.ask("CONFIG", "RESETSTAT")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_counts_as_many_lookups_as_in_redis(server: RiverbedServer, oracle: RedisServer, line: str) -> None:
    found = []
    for each in (server, oracle):
        with each.client() as client:
            begin(client)
            client.ask(*line.split())
            alone = lookups(client)
            begin(client)
            client.pipeline([["MULTI"], line.split(), ["EXEC"]])
            found.append((alone, lookups(client)))
    assert found[0] == found[1]


def range_of(key: str, number: int) -> list[Word]:
    return ["XRANGE", key, f"{number}-1", "+", "COUNT", 1]


IDS = [f"{number}-1" for number in range(1, 41)]
PIPELINES: dict[str, list[list[Word]]] = {
    "ranges": [range_of(key, number) for number in range(1, 5) for key in ("s", "s", "e", "no", "no")],
    "ranges of one key": [range_of("s", number) for number in range(1, 30)],
    "ranges of no key": [range_of("no", number) for number in range(1, 30)],
    "long ranges": [["XADD", "s", "9-1", "f", "v" * 70_000], *[range_of(key, 2) for key in ("s", "no", "e") * 8]],
    "acknowledgements": [["XACK", "s", "g", entry_id] for entry_id in IDS],
    "acknowledgements to no group": [["XACK", "s", "nog", entry_id] for entry_id in IDS],
    "acknowledgements to no key": [["XACK", "no", "g", entry_id] for entry_id in IDS],
    "entries and acknowledgements": [
        words for entry_id in IDS for words in (["XADD", "out", "*", "f", "v"], ["XACK", "s", "g", entry_id])
    ],
    "claims": [["XCLAIM", "s", "g", "d", "0", entry_id, "JUSTID"] for entry_id in IDS],
    "claims of no key": [["XCLAIM", "no", "g", "d", "0", entry_id, "JUSTID"] for entry_id in IDS],
    "reads": [["XREAD", "COUNT", 1, "STREAMS", key, "0"] for key in ("s", "no", "e") * 8],
    "reads of a group": [["XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">"]] * 8,
    "lengths": [["XLEN", key] for key in ("s", "no", "e") * 8],
    "many streams": [["XREAD", "STREAMS", *("s", "no") * 300, *["0"] * 600]],
    "many streams of a group": [["XREADGROUP", "GROUP", "g", "c", "STREAMS", *["s"] * 300, *[">"] * 300]],
}


@pytest.mark.parametrize("is_transaction", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_counts_as_many_lookups_as_in_redis(
    server: RiverbedServer, oracle: RedisServer, name: str, is_transaction: bool
) -> None:
    commands = PIPELINES[name]
    found = []
    for each in (server, oracle):
        with each.client() as client:
            begin(client)
            client.pipeline([["MULTI"], *commands, ["EXEC"]] if is_transaction else commands)
            found.append(lookups(client))
    assert found[0] == found[1]
    assert sum(found[0])


@pytest.mark.parametrize(
    "line",
    [
        "XREAD BLOCK 60000 STREAMS s $",
        "XREAD BLOCK 60000 STREAMS no s $ $",
        "XREADGROUP GROUP g c BLOCK 60000 STREAMS s >",
        "XREADGROUP GROUP g c BLOCK 60000 COUNT 1 STREAMS s >",
        f"XREAD BLOCK 60000 STREAMS {'no ' * 300} s {'$ ' * 301}",
        f"XREADGROUP GROUP g c BLOCK 60000 STREAMS {'e ' * 300} s {'> ' * 301}",
    ],
    ids=lambda line: line[:60],
)
def test_a_read_that_waits_counts_its_lookups_once(server: RiverbedServer, oracle: RedisServer, line: str) -> None:
    found = []
    for each in (server, oracle):
        with each.client() as client, each.client() as other:
            begin(other)
            other.ask("XGROUP", "SETID", "s", "g", "$")
            client.send(*line.split())
            until_blocked(other, 1)
            other.ask("XADD", "s", "5-1", "f", "v")
            assert b"5-1" in client.reply()
            found.append(lookups(other))
    assert found[0] == found[1]


def test_xread_with_a_bad_id_counts_no_lookup(server: RiverbedServer, oracle: RedisServer) -> None:
    """Redis counts one of each stream before it: it takes the words apart as it looks; we have nothing looked up."""
    found = []
    for each in (server, oracle):
        with each.client() as client:
            begin(client)
            assert client.ask("XREAD", "STREAMS", "s", "s", "0", "x").startswith(b"-ERR Invalid stream ID")
            found.append(lookups(client))
    assert found == [(0, 0), (2, 0)]
