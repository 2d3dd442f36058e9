"""docs/costs.md has a row for each command, and each row is true: what a turn of the loop does is counted.

What is counted are calls of functions while a command runs on data of one size, and on four times as much.  A command
"in slices", "from a view" or "at once" makes no longer turns with more data; one "for each" of something does, and its
row says what of.  Time plays no part, and nothing is counted of what the garbage collector calls for objects that other
tests have left.  Calls of compiled modules cannot be counted: there a turn never looks longer.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from riverbed.server.background import maintenance
from riverbed.server.commands import load_commands
from riverbed.server.commands.table import COMMANDS
from riverbed.server.execution import sliced_commands
from riverbed.server.execution.control import departures, transactions
from riverbed.server.execution.control.beside import Beside
from riverbed.server.version import IS_COMPILED
from tests.support.effort import undisturbed
from tests.support.raw import encode
from tests.support.servers import ROOT
from tests.support.ticks import Client, Ticks, in_loop

load_commands()

PAGE: Final = ROOT / "docs" / "costs.md"
BOUNDED: Final = ("at once", "in slices", "from a view")
FEW: Final = 300  # full nodes: a trim walks the entries of the node that it cuts into
FACTOR: Final = 4
SLICE: Final = 20
HOUR_MS: Final = 3_600_000
SIZES: Final = (
    "server.commands.admin.command._NAMES_A_SLICE",
    "server.commands.admin.debug.DIGEST_SLICE",
    "server.commands.channels._NAMES_A_STEP",
    "server.commands.clients.client_control._WORDS_A_SLICE",
    "server.commands.clients.client_list._IDS_A_SLICE",
    "server.commands.clients.client_list._LINES_A_SLICE",
    "server.commands.clients.connection._WORDS_A_SLICE",
    "server.commands.clients.pubsub._NAMES_A_SLICE",
    "server.commands.clients.transactions._KEYS_A_SLICE",
    "server.commands.groups.claiming._SLICE_EXAMINED",
    "server.commands.groups.claiming._SLICE_IDS",
    "server.commands.groups.claiming._SLICE_CLAIMS",
    "server.commands.groups.pending.SLICE_IDS",
    "server.commands.groups.pending._PIECE_ROWS",
    "server.commands.groups.pending._SLICE_ACKS",
    "server.commands.groups.stream_read.SLICE_ENTRIES",
    "server.commands.groups.stream_read._SLICE_HISTORY",
    "server.commands.groups.reads._SLICE_KEYS",
    "server.execution.control.watches._KEYS_A_STEP",
    "server.execution.waiters.AT_ONCE",
    "server.commands.groups.stream_read._MAX_TAKEN_OVER",
    "server.commands.groups.xinfo._MANY_IN_MEMORY",
    "server.commands.groups.xinfo._MANY_ROWS",
    "server.commands.groups.xinfo._PIECE_ROWS",
    "server.commands.groups.xinfo._MANY_PENDING",
    "server.commands.keys.keys._KEYS_A_SLICE",
    "server.commands.keys.scan.SCAN_SLICE",
    "server.commands.slices._SLICE_WORDS",
    "server.commands.streams.deletes.SLICE_IDS",
    "server.commands.streams.reads._STREAMS_A_SLICE",
    "server.commands.streams.reads._STREAMS_A_TURN",
    "server.commands.streams.streams.SLICE_IDS",
    "store.databases.copying.SLICE_ROWS",
    "store.groups.pending_reads._SHOW_COST",
    "store.groups.pending_reads._MAX_EXAMINED",
    "store.groups.known_consumers.FEW",
    "store.groups.known_consumers.PART",
    "store.groups.sliced_trim._SLICE",
    "store.groups.sliced_trim._SLICE_NODES",
    "store.groups.view._SLICE_ROWS",
    "store.streams.view._SLICE_ROWS",
    "store.tables.purge._ROWS_A_LOOK",
    "store.tables.purge._NOTES_A_SLICE",
)
# Replies of more bytes are long; a piece of one.
BYTES: Final = (
    "server.commands.groups.xinfo.PIECE_BYTES",
    "server.commands.slices._PIECE_BYTES",
    "server.commands.request.LONG_BYTES",
    "store.streams.view.PIECE_BYTES",
)
LONG: Final = 1000

Lines = Callable[[int], Iterator[str]]


# -- what there is before ----------------------------------------------------------------------------------------------


def names(n: int) -> str:
    return " ".join(f"k{number}" for number in range(n))


def ids(n: int) -> str:
    return " ".join(f"{number}-1" for number in range(1, n + 1))


def nothing(n: int) -> Iterator[str]:
    yield from ()


def keys(n: int) -> Iterator[str]:
    for number in range(n):
        yield f"XADD k{number} 1-1 f v"


def awaited(n: int) -> Iterator[str]:
    for number in range(n):
        yield f"XGROUP CREATE k{number} g $ MKSTREAM"


def entries(n: int) -> Iterator[str]:
    for number in range(1, n + 1):
        yield f"XADD s {number}-1 f v"


def unread(n: int) -> Iterator[str]:
    yield from entries(n)
    yield "XGROUP CREATE s g 0"


def pending(n: int) -> Iterator[str]:
    yield from unread(n)
    for _ in range(0, n, 10):
        yield "XREADGROUP GROUP g c COUNT 10 STREAMS s >"
    yield "XGROUP CREATECONSUMER s g d"


def groups(n: int) -> Iterator[str]:
    yield "XADD s 1-1 f v"
    for number in range(n):
        yield f"XGROUP CREATE s g{number} 0"


def consumers(n: int) -> Iterator[str]:
    yield "XADD s 1-1 f v"
    yield "XGROUP CREATE s g 0"
    for number in range(n):
        yield f"XGROUP CREATECONSUMER s g c{number}"


def busy(n: int) -> Iterator[str]:
    yield from unread(n)
    for number in range(n):
        yield f"XREADGROUP GROUP g c{number} COUNT 1 STREAMS s >"


def queued(n: int) -> Iterator[str]:
    yield "MULTI"
    for _ in range(n):
        yield "XADD s * f v"


def crowd(n: int) -> Iterator[str]:
    """Other clients, which `prepared` connects."""
    yield from ()


def after(before: Lines, *lines: str) -> Lines:
    def both(n: int) -> Iterator[str]:
        yield from before(n)
        yield from (line.format(names=names(n)) for line in lines)

    return both


def everything(n: int) -> Iterator[str]:
    yield from keys(n)
    yield from pending(n)


# -- what is asked -----------------------------------------------------------------------------------------------------

# For each row of the page: what there is before, and the command.  {names} and {ids} are as many as there are.
ASKED: Final[dict[str, tuple[Lines, str]]] = {
    "CLIENT LIST": (crowd, "CLIENT LIST"),
    "CLIENT KILL of many clients": (crowd, "CLIENT KILL TYPE normal SKIPME yes"),
    "CLIENT KILL": (nothing, "CLIENT KILL {skip}"),
    "CLIENT LIST ID": (nothing, "CLIENT LIST ID {numbers}"),
    "COMMAND INFO": (nothing, "COMMAND INFO {names}"),
    "COMMAND DOCS": (nothing, "COMMAND DOCS {names}"),
    "COMMAND GETKEYS": (nothing, "COMMAND GETKEYS DEL {names}"),
    "COMMAND GETKEYSANDFLAGS": (nothing, "COMMAND GETKEYSANDFLAGS DEL {names}"),
    "COPY": (after(pending, "XGROUP CREATE s h 0"), "COPY s t"),
    "COPY of a stream with many groups": (groups, "COPY s t"),
    "COPY of a stream with many consumers": (consumers, "COPY s t"),
    "DEL": (keys, "DEL {names}"),
    "UNLINK": (keys, "UNLINK {names}"),
    "DISCARD": (queued, "DISCARD"),
    "EXEC": (queued, "EXEC"),
    "EXEC of a long command": (after(keys, "MULTI", "DEL {names}"), "EXEC"),
    "EXISTS": (keys, "EXISTS {names}"),
    "TOUCH": (keys, "TOUCH {names}"),
    "FLUSHALL": (keys, "FLUSHALL"),
    "FLUSHDB": (keys, "FLUSHDB"),
    "FLUSHDB of awaited keys": (after(keys, "WATCH {names}"), "FLUSHDB"),
    "SWAPDB": (keys, "SWAPDB 0 1"),
    "KEYS": (keys, "KEYS *"),
    "SCAN": (keys, "SCAN 0 COUNT 1000000"),
    "RENAME": (everything, "RENAME s t"),
    "RENAMENX": (everything, "RENAMENX s t"),
    "MOVE": (everything, "MOVE s 1"),
    "DEBUG": (entries, "DEBUG DIGEST"),
    "PSUBSCRIBE": (nothing, "PSUBSCRIBE {names}"),
    "PUNSUBSCRIBE": (after(nothing, "PSUBSCRIBE {names}"), "PUNSUBSCRIBE"),
    "SUBSCRIBE": (nothing, "SUBSCRIBE {names}"),
    "UNSUBSCRIBE": (after(nothing, "SUBSCRIBE {names}"), "UNSUBSCRIBE"),
    "SSUBSCRIBE": (nothing, "SSUBSCRIBE {names}"),
    "SUNSUBSCRIBE": (after(nothing, "SSUBSCRIBE {names}"), "SUNSUBSCRIBE"),
    "PUBLISH": (after(nothing, "HELLO 3", "PSUBSCRIBE {names}"), "PUBLISH a b"),
    "PUBSUB CHANNELS": (after(nothing, "HELLO 3", "SUBSCRIBE {names}"), "PUBSUB CHANNELS k*"),
    "PUBSUB SHARDCHANNELS": (after(nothing, "HELLO 3", "SSUBSCRIBE {names}"), "PUBSUB SHARDCHANNELS k*"),
    "PUBSUB NUMSUB": (nothing, "PUBSUB NUMSUB {names}"),
    "PUBSUB SHARDNUMSUB": (nothing, "PUBSUB SHARDNUMSUB {names}"),
    "HELLO": (nothing, "HELLO 3 {setname}"),
    "RESET": (after(nothing, "HELLO 3", "SUBSCRIBE {names}", "WATCH {names}"), "RESET"),
    "UNWATCH": (after(keys, "WATCH {names}"), "UNWATCH"),
    "WATCH": (keys, "WATCH {names}"),
    "XACK": (pending, "XACK s g {ids}"),
    "XACKDEL": (pending, "XACKDEL s g IDS {n} {ids}"),
    "XADD": (pending, "XADD s * f v"),
    "XADD MAXLEN": (pending, "XADD s MAXLEN 1 * f v"),
    "XADD DELREF": (pending, "XADD s MAXLEN 1 DELREF * f v"),
    "XADD of a stream with many groups": (groups, "XADD s * f v"),
    "XAUTOCLAIM": (pending, "XAUTOCLAIM s g d 0 0 COUNT {n}"),
    "XCLAIM": (pending, "XCLAIM s g d 0 {ids}"),
    "XDEL": (entries, "XDEL s {ids}"),
    "XDELEX": (pending, "XDELEX s DELREF IDS {n} {ids}"),
    "XDELEX ACKED of a stream with many groups": (groups, "XDELEX s ACKED IDS 1 1-1"),
    "XGROUP CREATE": (pending, "XGROUP CREATE s h 0"),
    "XGROUP DESTROY": (pending, "XGROUP DESTROY s g"),
    "XGROUP DELCONSUMER": (pending, "XGROUP DELCONSUMER s g c"),
    "XINFO STREAM": (pending, "XINFO STREAM s FULL COUNT 0"),
    "XINFO GROUPS": (groups, "XINFO GROUPS s"),
    "XINFO CONSUMERS": (consumers, "XINFO CONSUMERS s g"),
    "RIVERBED LAG": (after(entries, "XGROUP CREATE s g 3-0"), "RIVERBED LAG s g"),
    "XNACK": (pending, "XNACK s g FAIL IDS {n} {ids}"),
    "XPENDING": (pending, "XPENDING s g - + {n}"),
    "XPENDING of many consumers": (busy, "XPENDING s g"),
    "XRANGE": (entries, "XRANGE s - +"),
    "XREVRANGE": (entries, "XREVRANGE s + -"),
    "XREAD": (entries, "XREAD STREAMS s 0"),
    "XREAD of many streams": (keys, "XREAD STREAMS {names} {zeros}"),
    "XREADGROUP": (unread, "XREADGROUP GROUP g c COUNT {n} STREAMS s >"),
    "XREADGROUP of pending entries": (pending, "XREADGROUP GROUP g c COUNT {n} STREAMS s 0"),
    "XREADGROUP CLAIM": (pending, "XREADGROUP GROUP g d COUNT {n} CLAIM 0 STREAMS s >"),
    "XSETID": (pending, "XSETID s 9999-1"),
    "XSETID below trimmed entries": (after(entries, "XTRIM s MAXLEN 0"), "XSETID s 0-1"),
    "XTRIM": (pending, "XTRIM s MAXLEN 1"),
    "XTRIM DELREF": (pending, "XTRIM s MAXLEN 1 DELREF"),
    "XTRIM ACKED": (after(pending, "XACK s g 1-1"), "XTRIM s MAXLEN 1 ACKED"),
    "XREAD BLOCK": (nothing, "XREAD BLOCK 1 STREAMS {names} {dollars}"),
    "XREADGROUP BLOCK": (awaited, "XREADGROUP GROUP g c BLOCK 1 STREAMS {names} {news}"),
}
# Commands that look at one key or none, in a server that holds much: none of it is looked through.
PLAIN: Final = """
AUTH x|CLIENT HELP|CLIENT ID|CLIENT GETNAME|CLIENT SETNAME a|CLIENT SETINFO LIB-NAME a|CLIENT REPLY ON
CLIENT NO-EVICT ON|CLIENT NO-TOUCH ON|CLIENT TRACKING OFF|CLIENT TRACKINGINFO|CLIENT CACHING YES|CLIENT GETREDIR
CLIENT INFO|CLIENT UNPAUSE|CLIENT UNBLOCK 99|CLIENT PAUSE 0|COMMAND COUNT|COMMAND LIST
COMMAND HELP|CONFIG GET maxclients|CONFIG SET maxclients 100|CONFIG REWRITE|CONFIG RESETSTAT|CONFIG HELP|DBSIZE|ECHO a
EXPIRE s 1000|EXPIREAT s 9999999999|EXPIRETIME s|PERSIST s|PEXPIRE s 100000|PEXPIREAT s 9999999999999|PEXPIRETIME s
PTTL s|TTL s|FAILOVER|INFO|LASTSAVE|LATENCY DOCTOR|LATENCY HELP|LATENCY HISTOGRAM|LATENCY HISTORY command|LATENCY LATEST
LATENCY RESET|MEMORY DOCTOR|MEMORY HELP|MEMORY MALLOC-STATS|MEMORY PURGE|MEMORY STATS|MEMORY USAGE s|OBJECT ENCODING s
MODULE HELP|MODULE LIST
OBJECT FREQ s|OBJECT HELP|OBJECT IDLETIME s|OBJECT REFCOUNT s|PING|PUBSUB NUMPAT|PUBSUB HELP|RANDOMKEY|REPLCONF x y
REPLICAOF NO ONE|SLAVEOF NO ONE|RIVERBED HELP|ROLE|SELECT 0|SLOWLOG GET|SLOWLOG HELP|SLOWLOG LEN
SLOWLOG RESET|SPUBLISH a b|TIME|TYPE s|WAIT 0 1|WAITAOF 0 0 1|XCFGSET s IDMP-DURATION 10|XGROUP SETID s g 5
ACL CAT|ACL CAT stream|ACL DELUSER u|ACL DRYRUN default PING|ACL GENPASS|ACL GETUSER default|ACL HELP|ACL LIST
ACL LOAD|ACL LOG|ACL SAVE|ACL SETUSER u on|ACL USERS|ACL WHOAMI
XGROUP CREATECONSUMER s g e|XGROUP SEEN s g c 1 1|XGROUP HELP|XGROUP POLICY s g|XIDMPRECORD s p i 1-1|XINFO HELP|XLEN s
"""
# They end or turn the connection, or the server, or have work done in a process or a thread of its own.
UNTRIED: Final = {
    *("BGREWRITEAOF", "BGSAVE", "MONITOR", "MULTI", "PSYNC", "QUIT", "RIVERBED SNAPSHOT", "RIVERBED REPAIR"),
    *("RIVERBED SNAPSHOTS", "SAVE", "SHUTDOWN", "SYNC"),
}


def filled(line: str, n: int) -> str:
    return line.format(
        n=n,
        names=names(n),
        ids=ids(n),
        zeros="0 " * n,
        dollars="$ " * n,
        news="> " * n,
        skip="SKIPME yes " * n,
        setname="SETNAME a " * n,
        numbers=" ".join(map(str, range(1000, 1000 + n))),
    )


def plain_lines() -> dict[str, str]:
    """The lines of PLAIN by the name of their command."""
    lines = PLAIN.strip().replace("\n", "|").split("|")
    return {name: line for line in lines for name in [_name_of(line)]}


def _name_of(line: str) -> str:
    first, *rest = line.split()
    return f"{first} {rest[0]}" if COMMANDS[first.encode()].subcommands else first


# -- what is counted ---------------------------------------------------------------------------------------------------


class Turns:
    """Counts the calls in each turn that the executor has; `longest` is the most in one.

    A long transaction lets other clients be answered in the middle, which ends a turn as well.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = 0
        run = asyncio.events.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            owner = getattr(handle._callback, "__self__", None)
            if not type(owner).__module__.startswith("riverbed.server.execution"):
                return run(handle)
            count = 0

            def note(frame: Any, event: str, called: Any) -> None:
                nonlocal count
                if frame.f_code is Beside._run.__code__:
                    self.longest = max(self.longest, count)
                    count = 0
                count += event in ("call", "c_call")

            sys.setprofile(note)
            try:
                return run(handle)
            finally:
                sys.setprofile(None)
                self.longest = max(self.longest, count)

        monkeypatch.setattr(asyncio.events.Handle, "_run", counted)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small slices, one a turn, and little padding: some turns write it and others not, as long as it is."""
    monkeypatch.setattr("riverbed.store.log.padding.MIN_BYTES", 4096)
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    monkeypatch.setattr(transactions, "TURN_NS", 0)
    monkeypatch.setattr(departures, "_TURN_S", 0.0)
    monkeypatch.setattr(maintenance, "PURGE_PAUSE_S", 3600.0)  # it would come before a command that cannot wait for it
    for size in SIZES:
        monkeypatch.setattr(f"riverbed.{size}", SLICE)
    for size in BYTES:
        monkeypatch.setattr(f"riverbed.{size}", LONG)


async def answered(client: Client, line: str) -> None:
    """Send a command in pieces, as a long one arrives, and wait for the end of its reply."""
    session = client.session
    sent = client.sent
    data = encode(line.split())
    for at in range(0, len(data), LONG):
        client.send_bytes(data[at : at + LONG])
        await asyncio.sleep(0)
    for _ in range(100_000):
        await asyncio.sleep(0)
        if client.sent > sent and not session.is_sliced and session.long_reply is None:
            client.replies()
            return
        if session.blocked is not None or session.closing:
            return
    raise AssertionError(f"no reply to {line[:50]}")


async def prepared(ticks: Ticks, n: int, before: Lines) -> Client:
    client = ticks.connect()
    for _ in range(n if before is crowd else 0):
        ticks.connect()
    for line in before(n):
        await answered(client, line)
    await ticks.settle()
    ticks.engine.checkpoint()
    client.replies()
    return client


def longest_turn(directory: Path, n: int, before: Lines, line: str, *, is_first: bool = False) -> int:
    """The most calls in one turn while the command runs, `n` of what it works on being there.

    When it `is_first`, nothing of that is in memory, as after a start.
    """
    found = []

    async def body() -> None:
        # no checkpoint begins by the clock: a turn of the command might write some of its rows ahead of it
        ticks = Ticks(directory / str(n), checkpoint_interval_ms=HOUR_MS, slowlog_log_slower_than=-1)
        ticks.executor.blocking.turn_s = 0.0
        client = await prepared(ticks, n, before)
        if is_first:
            for database in ticks.engine.txn.databases:
                database.forget_cached()
            ticks.engine.purge(0)
        ticks.server.maintenance.stop()  # its slices, which a time bounds, may fall into a turn of the command
        with pytest.MonkeyPatch.context() as patched, undisturbed():
            turns = Turns(patched)
            await answered(client, filled(line, n))
            await ticks.settle()
        found.append(turns.longest)
        client.leave()
        await ticks.settle()
        ticks.close()

    in_loop(body())
    return found[0]


# -- the page ----------------------------------------------------------------------------------------------------------


def rows() -> dict[str, str]:
    """How each command of the page runs, by what stands in backticks in its row."""
    found: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            for name in re.findall(r"`([^`]+)`([^,`]*)", cells[0]):
                item = "".join(name).strip()
                assert item not in found, item
                found[item] = cells[1]
    return found


def commands() -> set[str]:
    """All commands and subcommands that clients may call."""
    table = [row for above in COMMANDS.values() for row in above.subcommands.values() or [above]]
    return {row.name.decode() for row in table if row.is_for_clients}


def test_each_command_has_its_row() -> None:
    assert commands() - rows().keys() == set()


def test_each_row_is_tried() -> None:
    assert rows().keys() - ASKED.keys() - plain_lines().keys() - UNTRIED == set()
    assert (ASKED.keys() | plain_lines().keys() | UNTRIED) - rows().keys() == set()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ASKED)
def test_a_turn_is_as_long_as_the_page_says(tmp_path: Path, name: str) -> None:
    before, line = ASKED[name]
    few = longest_turn(tmp_path, FEW, before, line)
    many = longest_turn(tmp_path, FEW * FACTOR, before, line)
    if rows()[name] in BOUNDED:
        assert many < 1.5 * few + 50, (few, many)
    else:
        assert rows()[name].startswith("for each ")
        assert IS_COMPILED or many > 2 * few, (few, many)


# Of each of them the first one after a start.
FIRST: Final = (
    "XADD s * f v",
    "XLEN s",
    "XACK s g 1-1",
    "XREADGROUP GROUP g c5 STREAMS s >",
    "XREADGROUP GROUP g new STREAMS s >",
    "XREADGROUP GROUP g c5 STREAMS s 0",
    "XPENDING s g - + 1 c5",
    "XCLAIM s g c5 0 1-1",
    "XGROUP CREATECONSUMER s g new",
    "XGROUP DELCONSUMER s g c5",
    "XGROUP CREATE s new 0",
    "XGROUP DESTROY s g",
    "XREADGROUP GROUP none c STREAMS s >",
)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("line", FIRST)
def test_the_first_command_for_a_stream_reads_no_more_than_it_names(tmp_path: Path, line: str) -> None:
    def crowded(n: int) -> Iterator[str]:
        yield from groups(n)
        yield from busy(n)

    few, many = (longest_turn(tmp_path, n, crowded, line, is_first=True) for n in (FEW, FEW * FACTOR))
    assert many < 1.5 * few + 50, (few, many)


@pytest.mark.usefixtures("small")
def test_commands_of_one_key_look_at_nothing_else(tmp_path: Path) -> None:
    longest: list[dict[str, int]] = []

    async def body(n: int) -> None:
        # SLOWLOG GET is one of them
        ticks = Ticks(tmp_path / str(n), checkpoint_interval_ms=HOUR_MS, slowlog_log_slower_than=-1)
        client = await prepared(ticks, n, after(everything, "HELLO 3", "SUBSCRIBE {names}", "WATCH {names}"))
        found = {}
        for name, line in plain_lines().items():
            asker = ticks.connect()
            with pytest.MonkeyPatch.context() as patched, undisturbed():
                turns = Turns(patched)
                await answered(asker, line)
            found[name] = turns.longest
            asker.leave()
        longest.append(found)
        client.leave()
        await ticks.settle()
        ticks.close()

    for n in (FEW, FEW * FACTOR):
        in_loop(body(n))
    few, many = longest
    assert {name: (few[name], many[name]) for name in few if many[name] > 1.5 * few[name] + 50} == {}
