"""`rdb_changes_since_last_save`: each command changes it by as much as it does in redis-server 7.0.15.

Where the newest Redis counts otherwise, or has the command alone, the number it counts stands here (`NEWEST`).  What
Redis has not at all is counted by analogy (`OWN`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.conftest import StartRedis, StartRiverbed, base_seed
from tests.support.raw import RawClient
from tests.support.replicas import until_level, until_linked
from tests.support.waiting import until_blocked

NEVER_BY_ITSELF = {"checkpoint-interval-ms": 3_600_000}

# In order; a line that is indented changes what the others are about, and is compared like them.
SCRIPT = """
XADD s 1-1 f v
XADD s 1-1 f v
XADD nope NOMKSTREAM 1-1 f v
XADD s MAXLEN 1 2-1 f v
XADD s MAXLEN = 0 3-1 f v
XADD s 4-1 f v
XADD s MINID 4-1 5-1 f v g w
XADD s 6-1 f
XTRIM s MAXLEN 5
XTRIM s MAXLEN 1
XADD s 6-1 f v
XTRIM s MINID 99
XTRIM nope MAXLEN 1
XTRIM s MAXLEN x
XADD s 100-1 f v
XADD s 100-2 f v
XADD s 100-3 f v
XADD s 100-4 f v
XADD s 100-5 f v
XADD s 100-6 f v
XADD s 100-7 f v
XADD s 100-8 f v
XDEL s 100-1 100-2 9-9
XDEL s 9-9
XDEL s x
XDEL nope 1-1
XGROUP CREATE s g 0
XGROUP CREATE s g 0
XGROUP CREATE nope g 0
XGROUP CREATE new g $ MKSTREAM
XGROUP CREATE s other 0
XGROUP SETID s other $
XGROUP SETID s other $
XGROUP SETID s nope $
XGROUP CREATECONSUMER s g a
XGROUP CREATECONSUMER s g a
XREADGROUP GROUP g b COUNT 1 STREAMS s >
XREADGROUP GROUP g b COUNT 2 STREAMS s >
XREADGROUP GROUP g b COUNT 1 STREAMS s >
XREADGROUP GROUP g d NOACK COUNT 1 STREAMS s >
XREADGROUP GROUP g e STREAMS s >
XREADGROUP GROUP g e STREAMS s >
XREADGROUP GROUP nope f STREAMS s >
XADD s 101-1 f v
XREADGROUP GROUP g e NOACK STREAMS s >
XGROUP CREATE t g 0 MKSTREAM
XADD t 1-1 f v
XADD t 1-2 f v
XADD s 102-1 f v
XREADGROUP GROUP g z STREAMS s t > >
XREADGROUP GROUP g z STREAMS s t > >
XADD t 1-3 f v
XREADGROUP GROUP g z STREAMS s t > >
XACK s g 100-3 100-4 9-9
XACK s g 9-9
XACK s g 102-1
XACK s g x
XACK s nope 100-5
XCLAIM s g k 0 100-5
XCLAIM s g k 0 100-5 100-6
XCLAIM s g k 0 100-5 100-5
XCLAIM s g k 0 100-5 JUSTID
XCLAIM s g k 0 100-5 LASTID 200-1
XCLAIM s g k 0 9-9 LASTID 300-1
XCLAIM s g k 0 9-9 LASTID 1-1
XCLAIM s g k 99999999 100-5
XCLAIM s g k 0 100-3 FORCE
XCLAIM s g k 0 9-9 FORCE
XCLAIM s g k 0 x
XCLAIM s nope k 0 1-1
XDEL s 100-5
XCLAIM s g k 0 100-5 100-3
XCLAIM s g k 0 100-8 100-3 RETRYCOUNT 4 IDLE 5
XADD s 400-1 f v
XADD s 400-2 f v
XADD s 400-3 f v
XREADGROUP GROUP g k COUNT 9 STREAMS s >
XDEL s 400-1 400-2
XAUTOCLAIM s g z 0 400-0 COUNT 2
XAUTOCLAIM s g k5 0 0 COUNT 2
XAUTOCLAIM s g k5 0 0 COUNT 2
XAUTOCLAIM s g k5 9999999 0 COUNT 2
XAUTOCLAIM s g k5 0 0 COUNT 2 JUSTID
XAUTOCLAIM s nope k5 0 0
XPENDING s g
XPENDING s g - + 5
XGROUP DELCONSUMER s g k5
XGROUP DELCONSUMER s g nope
XGROUP DESTROY s other
XGROUP DESTROY s other
XSETID s 500-1
XSETID s 500-1 ENTRIESADDED 100 MAXDELETEDID 1-1
XSETID s 1-1
XSETID nope 1-1
XRANGE s - +
XREAD STREAMS s 0
XLEN s
XINFO STREAM s
EXPIRE s 1000
EXPIRE s 1000 NX
EXPIRE s x
EXPIRE nope 100
PEXPIREAT s 99999999999999
PERSIST s
PERSIST s
EXPIRE new -1
RENAME t u
RENAME u u
RENAMENX u s
RENAMENX u t
RENAME nope x
COPY t u
COPY t u
COPY t u REPLACE
COPY t u DB 1
COPY nope v
MOVE t 2
MOVE s 0
MOVE nope 2
SWAPDB 0 5
SWAPDB 5 0
SWAPDB 0 0
SWAPDB 0 99
TOUCH s
TYPE s
DEL s u nope
DEL nope
XADD a 1-1 f v
XADD b 1-1 f v
UNLINK a b a
XADD a 1-1 f v
XADD b 1-1 f v
FLUSHDB
FLUSHDB
FLUSHDB x
XADD a 1-1 f v
FLUSHALL
FLUSHALL
PUBLISH x y
PING
SELECT 3
XADD a 1-1 f v
SELECT 0
CONFIG SET maxclients 5000
"""

# Behind PREPARED.  Line -> (what the newest Redis counts, what 7.0 counts).  In 7.0 a read of history is a change, and
# a consumer is made only for what gives it something.
NEWEST = {
    "XREADGROUP GROUP g a STREAMS s 0": (0, 1),
    "XREADGROUP GROUP g a STREAMS s 9999": (0, 1),
    "XREADGROUP GROUP g z STREAMS s t 0 >": (3, 4),
    "XREADGROUP GROUP g made1 STREAMS s 0": (1, 2),
    "XREADGROUP GROUP g made2 STREAMS s >": (1, 0),
    "XCLAIM s g made3 0 9-9": (1, 0),
    "XCLAIM s g made4 99999999 1-1": (1, 0),
    "XAUTOCLAIM s g made5 99999999 0": (1, 0),
}
# Commands and options that 7.0 lacks -> what the source of the newest Redis counts, and what we count by analogy where
# there is none to read.  In order.
LACKING = [
    ("XDELEX s IDS 3 1-1 1-1 9-9", 1),
    ("XDELEX s DELREF IDS 1 1-2", 1),  # what it takes off the lists of groups is not counted
    ("XDELEX s ACKED IDS 1 1-3", 0),
    ("XACKDEL s g IDS 2 1-3 9-9", 1),  # the acknowledgement; the deletion is not counted
    ("XACKDEL s g DELREF IDS 1 1-4", 1),
    ("XNACK s g FAIL IDS 2 1-5 1-6", 2),
    ("XNACK s g FAIL IDS 1 9-9", 0),
    ("XREADGROUP GROUP g a CLAIM 0 COUNT 2 STREAMS s >", 1),
    ("XREADGROUP GROUP g a CLAIM 999999 STREAMS s >", 0),
    ("XADD s IDMP p 1 * f v", 1),
    ("XADD s IDMP p 1 * f v", 0),
    ("XCFGSET s IDMP-MAXSIZE 5", 1),
    ("XCFGSET s IDMP-MAXSIZE 5", 0),
    ("XIDMPRECORD s p 2 1-9", 1),
    ("XIDMPRECORD s p 2 1-9", 0),
    ("XTRIM s MAXLEN 8 DELREF", 1),
    ("XTRIM s MAXLEN 8 ACKED", 0),
    ("XADD s MAXLEN 7 DELREF * f v", 1),
    ("XGROUP POLICY s g MAXDELIVERIES 5 DEADLETTER dead", 1),
    ("XGROUP POLICY s g MAXDELIVERIES 5", 0),
    ("XGROUP POLICY s g", 0),
    ("XGROUP SEEN s g a 1 1", 1),
    ("XGROUP SEEN s g nobody 1 1", 0),
    ("XGROUP POLICY s g MAXDELIVERIES 1", 1),
    # two dead letters: for each an entry and an acknowledgement
    ("XCLAIM s g a 0 1-8 1-9", 4),
]
PREPARED = [
    "XGROUP CREATE s g 0 MKSTREAM",
    "XGROUP CREATE t g 0 MKSTREAM",
    *[f"XADD s 1-{number} f v" for number in range(1, 13)],
    "XADD t 1-1 f v",
    "XREADGROUP GROUP g a STREAMS s >",
]


def changes(client: RawClient) -> int:
    return int(client.info("persistence")["rdb_changes_since_last_save"])


class Counted:
    """A server whose counter is looked at behind each command."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        client.ask("CONFIG", "SET", "save", "")
        self.before = changes(client)

    def count(self, *lines: str) -> int:
        """By how much these commands, sent together, change the counter."""
        self.client.pipeline([line.split() for line in lines])
        return self.look()

    def look(self) -> int:
        before, self.before = self.before, changes(self.client)
        return self.before - before


@pytest.fixture
def pair(start_redis: StartRedis, start_riverbed: StartRiverbed) -> Iterator[tuple[Counted, Counted]]:
    with start_riverbed(options=NEVER_BY_ITSELF).client() as ours, start_redis().client() as theirs:
        yield Counted(ours), Counted(theirs)


def test_each_command_counts_what_it_counts_in_redis(pair: tuple[Counted, Counted]) -> None:
    ours, theirs = pair
    for number, line in enumerate(SCRIPT.split("\n")[1:-1]):
        counts = ours.count(line), theirs.count(line)
        assert counts[0] == counts[1], (number, line, counts)


@pytest.mark.parametrize("line", NEWEST)
def test_groups_count_as_in_the_newest_redis(pair: tuple[Counted, Counted], line: str) -> None:
    for counted in pair:
        counted.count(*PREPARED)
    assert (pair[0].count(line), pair[1].count(line)) == NEWEST[line]


def test_what_redis_7_lacks_is_counted_too(start_riverbed: StartRiverbed) -> None:
    with start_riverbed(options=NEVER_BY_ITSELF).client() as client:
        ours = Counted(client)
        ours.count(*PREPARED)
        for line, expected in LACKING:
            assert (line, ours.count(line)) == (line, expected)


def random_line(source: random.Random, ids: dict[str, int]) -> str:
    key, group, name = source.choice("stu"), source.choice("gh"), source.choice("abc")
    last = ids.get(key, 0)
    some = " ".join(f"1-{source.randint(1, last + 1)}" for _ in range(source.randint(1, 4)))
    kind = source.randrange(12)
    if kind < 4:
        ids[key] = last + 1
        trim = source.choice(("", "", "", f"MAXLEN {source.randrange(9)} ", f"MINID = 1-{last} "))
        return f"XADD {key} {trim}1-{last + 1} f v"
    if kind == 4:
        return f"XTRIM {key} MAXLEN {source.randrange(12)}"
    return (
        *(f"XDEL {key} {some}", f"XACK {key} {group} {some}"),
        f"XREADGROUP GROUP {group} {name} COUNT {source.randint(1, 3)} STREAMS {key} >",
        f"XCLAIM {key} {group} {name} 0 {some}",
        f"XAUTOCLAIM {key} {group} {name} 0 0 COUNT 3 JUSTID",
        f"XCLAIM {key} {group} {name} 0 {some} FORCE LASTID 1-{source.randint(1, last + 1)}",
        f"XREADGROUP GROUP {group} {name} COUNT 2 NOACK STREAMS {key} >",
    )[kind - 5]


@pytest.mark.parametrize("number", range(3))
def test_random_scripts_count_the_same(pair: tuple[Counted, Counted], number: int) -> None:
    ours, theirs = pair
    source = random.Random(base_seed() + number)
    ids: dict[str, int] = {}
    prepared = [f"XGROUP CREATE {key} {group} 0 MKSTREAM" for key in "stu" for group in "gh"]
    prepared += [f"XGROUP CREATECONSUMER {key} {group} {name}" for key in "stu" for group in "gh" for name in "abc"]
    assert ours.count(*prepared) == theirs.count(*prepared) == 24
    for step in range(700):
        lines = [random_line(source, ids) for _ in range(source.choice((1, 1, 1, 20)))]
        counts = ours.count(*lines), theirs.count(*lines)
        assert counts[0] == counts[1], (base_seed() + number, step, lines, counts)


def test_pipelines_that_are_executed_together_count_each_command(pair: tuple[Counted, Counted]) -> None:
    adds = [f"XADD s {number}-1 f v" for number in range(1, 100)]
    wrong = [*adds[:50], "XADD s 1-1 f v", *adds[50:]]
    others = [f"XADD {'tu'[number % 2]} {number}-1 f v" for number in range(1, 100)]
    mix = [line for number in range(1, 80) for line in (f"XADD t {number + 200}-1 f v", f"XACK s g {number}-1")]
    for counted in pair:
        assert counted.count("XGROUP CREATE s g 0 MKSTREAM", "XGROUP CREATECONSUMER s g a") == 2
        assert counted.count(*wrong) == 99
        assert counted.count(*others) == 99
        assert counted.count("XREADGROUP GROUP g a COUNT 50 STREAMS s >") == 1
        assert counted.count(*mix) == 79 + 50
        assert counted.count(f"XDEL s {' '.join(f'{number}-1' for number in range(1, 99))}") == 98
        assert counted.count("XADD s 1000-1 f v", *["XREADGROUP GROUP g a COUNT 1 STREAMS s >"] * 3) == 3


def test_long_commands_count_all_their_slices(pair: tuple[Counted, Counted]) -> None:
    numbers = range(1, 3_001)
    ids = " ".join(f"{number}-1" for number in numbers)
    for counted in pair:
        assert counted.count("XGROUP CREATE s g 0 MKSTREAM", *[f"XADD s {number}-1 f v" for number in numbers]) == 3_001
        assert counted.count("XREADGROUP GROUP g a STREAMS s >") == 2
        assert counted.count(f"XCLAIM s g a 0 {ids}") == 3_000
        assert counted.count("XAUTOCLAIM s g a 0 0 COUNT 2000 JUSTID") == 2_000
        assert counted.count(f"XACK s g {ids}") == 3_000
        assert counted.count(f"XDEL s {ids}") == 3_000


def test_transactions_count_their_commands(pair: tuple[Counted, Counted]) -> None:
    for counted in pair:
        assert counted.count("MULTI", "XADD s 1-1 f v", "XADD s 1-1 f v", "XADD s 1-2 f v", "EXEC") == 2
        assert counted.count("MULTI", "PING", "EXEC") == 0
        assert counted.count("MULTI", "XADD s 2-1 f v", "DISCARD") == 0
        assert counted.count("MULTI", "XADD s 2-1", "XADD s 2-1 f v", "EXEC") == 0


def test_reads_that_wait_count_when_they_are_served(start_redis: StartRedis, start_riverbed: StartRiverbed) -> None:
    # in 7.0 the read that an XADD serves is no change; the newest Redis executes it then, like any other
    for server, of_read in ((start_riverbed(options=NEVER_BY_ITSELF), 1), (start_redis(), 0)):
        with server.client() as other, server.client() as reader, server.client() as client:
            counted = Counted(client)
            counted.count("XGROUP CREATE s g 0 MKSTREAM", "XGROUP CREATECONSUMER s g a")
            for words, counts in ((["XREADGROUP", "GROUP", "g", "a"], of_read), (["XREAD"], 0)):
                reader.send(*words, "BLOCK", 0, "STREAMS", "s", ">" if len(words) > 1 else "$")
                until_blocked(other, 1)
                assert counted.look() == 0
                other.ask("XADD", "s", "*", "f", "v")
                reader.reply()
                assert counted.look() == 1 + counts
            assert counted.count("XREADGROUP GROUP g a COUNT 9 STREAMS s >") == 1
            assert counted.count("XREADGROUP GROUP g a BLOCK 20 STREAMS s >") == 0


def test_expired_keys_are_no_changes(pair: tuple[Counted, Counted]) -> None:
    for counted in pair:
        counted.count("XADD s 1-1 f v", "PEXPIRE s 1")
        while counted.client.ask("EXISTS", "s") != b":0\r\n":
            pass
        assert counted.look() == 0
        assert counted.count("XADD s 1-1 f v", "PEXPIRE s 1") == 2


def test_a_save_begins_again(pair: tuple[Counted, Counted]) -> None:
    for counted in pair:
        counted.count("XADD s 1-1 f v")
        counted.client.ask("SAVE")
        assert changes(counted.client) == 0
        counted.client.ask("XADD", "s", "*", "f", "v")
        assert changes(counted.client) == 1


def test_a_replica_counts_the_commands_that_it_is_sent(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed(options=NEVER_BY_ITSELF)
    replica = start_riverbed(options={**NEVER_BY_ITSELF, "replicaof": f"127.0.0.1 {primary.port}"})
    with primary.client() as client, replica.client() as shown:
        client.ask("XADD", "s", "1-1", "f", "v")
        until_linked(replica)
        until_level(primary, replica)
        counted = Counted(shown)
        client.pipeline([("XADD", "s", f"2-{number}", "f", "v") for number in range(100)])
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        client.ask("XDEL", "s", "2-1", "2-2")
        until_level(primary, replica)
        assert counted.look() == 103
