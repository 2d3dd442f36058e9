"""Transactions of plain commands that came whole, with their MULTI and EXEC: they run at once, and are not queued."""

from __future__ import annotations

import errno
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from riverbed.server.execution.control import spool, transaction_replies, transactions
from riverbed.store.databases import lent
from tests.support.runs import bulks, same
from tests.support.ticks import Ticks, in_loop

MS = 1_700_000_000_000
OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"
ADDS = ["XADD s * f v", "XADD t * f v"] * 5
MIX = [line for number in range(1, 9) for line in ("XADD s * f v", f"XACK in g {number}-1")]
BEGIN = [
    *("XADD s 1-1 f v", "XADD t 1-1 f v", "XGROUP CREATE in g 0 MKSTREAM"),
    *[f"XADD in {number}-1 f v" for number in range(1, 20)],
    "XREADGROUP GROUP g c STREAMS in >",
]


@pytest.fixture(autouse=True)
def native_module() -> None:
    import_module("riverbed.store.wire.native")  # it must have been built: without it there are no runs


def ran_whole(ticks: Ticks) -> bool:
    """Whether no MULTI took a time of its own."""
    counters = ticks.executor.stats.counters(b"multi")
    return counters.calls > 0 and counters.nanoseconds == 0


@pytest.mark.parametrize(
    ("commands", "is_whole"),
    [
        (["XADD s * f v"], True),
        (ADDS, True),
        (MIX, True),
        *((["XADD s * f v"] * count, True) for count in (31, 32, 33, 34)),
        ([*ADDS, "XADD s * f v g w", "XADD s NOMKSTREAM * f v", "XADD s MAXLEN ~ 3 * f v"], True),
        # from an XADD that is not simple on, it goes on as any transaction
        (["XADD new * f v", *ADDS], True),
        ([*ADDS, "XADD new * f v", *ADDS, "XADD other * f v"], True),
        ([*ADDS, "XADD s 1-1 f v", *ADDS], True),
        ([*MIX, "XADD new * f v", "XACK in g 9-1", "XADD new 1-1 f v", "XACK in g 10-1"], True),
        (["XADD in * f v", "XADD s MAXLEN = 1 * f v"], True),
        # other commands beside them, or alone
        (["XLEN s", *ADDS], True),
        ([*ADDS, "XLEN s", *MIX, "XLEN in"], True),
        (["XLEN s", "XRANGE s - +"], True),
        (["XLEN s"], True),
        ([], True),
        (["XACK in g 1-1", "XDEL in 1-1", "XADD in 1-1 f v", "XDEL in 1-1", "XLEN in"], True),
        (["XREADGROUP GROUP g d COUNT 2 STREAMS in >", "XREAD BLOCK 0 STREAMS s $", "XPENDING in g"], True),
        (["DEL s", "XLEN s", "XADD s 1-1 f v", "EXPIRE s 100", "TTL s", "RENAME s new", "TYPE new", "KEYS *"], True),
        (["XRANGE s a b", "XLEN none", "XREADGROUP GROUP no d STREAMS in >", "XTRIM s MAXLEN x"], True),
        (["XAUTOCLAIM in g d 0 0 COUNT 3", "XCLAIM in g e 0 1-1"], True),
        (["XLEN s"] * 128, True),
        (["XADD new * f v", "XLEN s"] * 64, True),
        # these are queued
        (["XLEN s"] * 129, False),
        ([*ADDS, "XADD s * f"], False),
        (["XLEN s", "XLEN"], False),
        (["XLEN s", "XLEN s t"], False),
        (["XLEN s", "MULTI", "XLEN s"], False),
        (["XLEN s", "WATCH s"], False),
        (["XLEN s", "no such"], False),
        (["XLEN s", "xLen s"], False),
        (["XLEN s", "PUBLISH c m"], False),
        (["XLEN s", "XINFO STREAM s"], False),
        (["XLEN s", "CLIENT GETNAME"], False),
        ([*ADDS, "SELECT 1", *ADDS], True),
        (["XRANGE s - + COUNT 1", "XRANGE t - + COUNT 1"], False),
        (["XCLAIM in g d 0 1-1 JUSTID", "XCLAIM in g d 0 2-1 JUSTID"], False),
    ],
)
def test_a_whole_transaction_does_what_its_commands_do_one_by_one(
    tmp_path: Path, commands: list[str], is_whole: bool
) -> None:
    found = []

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *BEGIN)
        replies = await ticks.ask(client, "PING", "MULTI", *commands, "EXEC", "XLEN s")
        found.append(ran_whole(ticks))
        ticks.check_accounts()
        return [*replies, *await ticks.ask(client, "XLEN new", "MULTI", "PING", "EXEC", "XPENDING in g - + 20")]

    replies = same(tmp_path, scenario)
    assert found == [False, is_whole]
    if is_whole and commands:
        assert replies[1 : 2 + len(commands)] == [OK, *[QUEUED] * len(commands)]
        assert replies[2 + len(commands)].startswith(b"*%d\r\n" % len(commands))


def test_it_is_counted_and_logged_as_a_transaction_that_was_queued(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, slowlog_log_slower_than=0)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XADD t 1-1 f v")
        await ticks.ask(client, *ADDS)  # both streams are lent, so that what follows is one line of the log
        ticks.clock.now_ms += 1
        await ticks.ask(client, "SLOWLOG RESET")
        replies = await ticks.ask(client, "multi", *ADDS, "exec")
        assert ran_whole(ticks)
        assert replies == [
            OK,
            *[QUEUED] * 10,
            b"*10\r\n" + b"".join(bulks(*(f"{MS + 1}-{at // 2}" for at in range(10)))),
        ]
        batch = ticks.batches()[-1]
        assert (batch[0], batch[-1], len(batch)) == (b"MULTI", b"EXEC", 12)
        stats = ticks.executor.stats
        assert [stats.counters(name).calls for name in (b"multi", b"xadd", b"exec")] == [1, 22, 1]
        assert (stats.commands_processed, client.session.commands_processed) == (13 + 12, 13 + 12)
        assert client.session.last_command == b"exec"
        shown = [b" ".join(call.words) for call in stats.slowlog.calls]
        assert shown == [b"XADD t * f v", b"multi", b"SLOWLOG RESET"]
        assert not client.session.transaction.queued_count
        assert client.session.is_plain
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("spelling", ["Multi", "Exec"])
def test_other_spellings_are_queued(tmp_path: Path, spelling: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *BEGIN)
        begin, end = (spelling, "EXEC") if spelling == "Multi" else ("MULTI", spelling)
        replies = await ticks.ask(client, begin, *ADDS, end)
        assert (len(replies), replies[-1][:5]) == (12, b"*10\r\n")
        assert not ran_whole(ticks)
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("commands", [ADDS, ["XLEN s"] * 10])
@pytest.mark.parametrize(("other", "is_broken"), [("XLEN t", False), ("XADD t * f v", True)])
def test_a_transaction_of_a_client_that_watches_runs_unless_its_watch_is_broken(
    tmp_path: Path, other: str, is_broken: bool, commands: list[str]
) -> None:
    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *BEGIN, "WATCH t")
        await ticks.ask(ticks.connect(), other)
        replies = await ticks.ask(client, "MULTI", *commands, "EXEC")
        assert (replies[-1] == b"*-1\r\n") == is_broken
        assert replies[:-1] == [OK, *[QUEUED] * 10]
        assert client.session.is_plain
        ticks.check_accounts()
        # the watch is over
        assert (await ticks.ask(client, "MULTI", *commands, "EXEC"))[-1].startswith(b"*10\r\n")
        return replies

    same(tmp_path, scenario)


def test_reads_that_came_whole_wait_for_a_view_as_if_they_had_been_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONG_BYTES", "_BYTES_A_COMMAND", "_MIN_ROOM"):
        monkeypatch.setattr(transaction_replies, name, 0)

    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, *BEGIN, *ADDS * 3)
        client.send("XLEN s", "MULTI", "XRANGE s - +", "XLEN s", "XRANGE t - + COUNT 1", "EXEC", "XLEN t")
        other.send("XADD s * f later", "CLIENT LIST TYPE normal")
        await ticks.settle()
        assert client.session.is_plain
        assert not client.session.transaction.queued_bytes
        ticks.check_accounts()
        return [client.replies(), other.replies()[:1]]

    replies, _ = same(tmp_path, scenario)
    assert replies[0] == b":16\r\n"
    assert replies[5].startswith(b"*3\r\n*17\r\n")  # what came before the view shows
    assert replies[6:] == [b":16\r\n"]


def test_a_long_whole_transaction_ends_turns_and_others_see_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "TURN_NS", 0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, *BEGIN)
        ticks.executor.beside.sockets = sockets = Mock()  # they are looked at when a turn has ended
        other.send("XLEN new")
        replies = await ticks.ask(client, "MULTI", *["XDEL in 1-1", "XADD new * f v"] * 20, "EXEC", "XLEN new")
        assert sockets.read.call_count > 20
        assert ran_whole(ticks)
        assert (len(replies), replies[-1], replies[-2][:5]) == (43, b":20\r\n", b"*40\r\n")
        assert other.replies() == [b":0\r\n"]
        assert (ticks.batches()[-1][0], ticks.batches()[-1][-1]) == (b"MULTI", b"EXEC")
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("commands", [ADDS, ["XLEN s"], []])
@pytest.mark.parametrize(
    "before",
    [
        ["CLIENT REPLY OFF"],
        ["CLIENT REPLY SKIP"],
        ["SUBSCRIBE news"],
        ["MULTI"],
        ["MULTI", "XADD s * f v"],
        ["MULTI", "XADD s"],
        ["ACL SETUSER default -multi"],
        ["ACL SETUSER default -@all"],
        ["ACL SETUSER u on >p", "AUTH u p"],
        ["ACL SETUSER default off", "RESET"],
        ["MONITOR"],
        ["CLIENT PAUSE 100000", "PING"],
        ["REPLICAOF 127.0.0.1 1"],
    ],
)
def test_a_client_that_is_not_plain_is_answered_as_ever(tmp_path: Path, before: list[str], commands: list[str]) -> None:
    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *BEGIN)
        return await ticks.ask(client, *before, "MULTI", *commands, "EXEC", "PING")

    same(tmp_path, scenario)


def test_others_see_it_as_a_whole(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        reader, watcher, client = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(client, *BEGIN)
        reader.send("XREAD BLOCK 0 STREAMS s $")
        await ticks.ask(watcher, "WATCH s", "MULTI", "PING")
        replies = await ticks.ask(client, "MULTI", *ADDS, "EXEC", "PING")
        return [replies, reader.replies(), await ticks.ask(watcher, "EXEC")]

    replies, read, watched = same(tmp_path, scenario)
    assert read[0].count(b"-0\r\n") == 1
    assert watched == [b"*-1\r\n"]
    assert (replies[-1], replies[-2][:5]) == (b"+PONG\r\n", b"*10\r\n")


@pytest.mark.parametrize("commands", [ADDS, [*ADDS, "XADD new * f v"], ["XADD new * f v", *ADDS]])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_commit_undoes_all_of_it(tmp_path: Path, operation: str, commands: list[str]) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        client = ticks.connect()
        await ticks.ask(client, *BEGIN)
        ticks.files.fail(operation, errno.EIO)
        replies = await ticks.ask(client, "PING", "MULTI", *commands, "EXEC", "PING")
        assert ran_whole(ticks)
        count = len(commands)
        assert replies[: 2 + count] == [b"+PONG\r\n", OK, *[QUEUED] * count]
        assert (len(replies), replies[-2][:8], replies[-1]) == (4 + count, b"-MISCONF", b"+PONG\r\n")
        assert await ticks.ask(client, "XLEN s", "XLEN t", "EXISTS new") == [b":1\r\n", b":1\r\n", b":0\r\n"]
        ticks.close(save=False)

    in_loop(body())


def test_a_bug_in_a_run_undoes_the_transaction_and_nothing_before_it(tmp_path: Path) -> None:
    def append(*args: object) -> object:
        real(*args)
        raise RuntimeError("planted")

    real = lent.append

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *BEGIN)
        with patch.object(lent, "append", append):
            replies = await ticks.ask(client, "XDEL in 19-1", "MULTI", *ADDS, "EXEC", "XLEN s")
        assert ran_whole(ticks)
        assert replies[:12] == [b":1\r\n", OK, *[QUEUED] * 10]
        assert replies[12].startswith(b"-ERR internal error: exec was undone")
        assert replies[13] == b":1\r\n"
        assert ticks.batches()[-1] == [b"XDEL in 19-1"]
        assert (await ticks.ask(client, "MULTI", *ADDS, "EXEC", "XLEN s"))[-1] == b":6\r\n"
        assert len(ticks.batches()[-1]) == 12
        ticks.close()

    in_loop(body())


def test_replies_that_have_no_room_undo_what_has_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG_BYTES", "_BYTES_A_COMMAND"):
        monkeypatch.setattr(transaction_replies, name, 0)
    monkeypatch.setattr(spool, "MAX_SPOOLED_BYTES", 0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *BEGIN)
        replies = await ticks.ask(client, "MULTI", *ADDS, "XADD new * f v", "EXEC", "XLEN s", "XLEN new")
        assert ran_whole(ticks)
        assert replies[-3].startswith(b"-ERR EXEC was undone")
        assert replies[-2:] == [b":1\r\n", b":0\r\n"]
        ticks.close()

    in_loop(body())
