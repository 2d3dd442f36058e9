"""A tick whose commit fails takes back what it did to the tables; all else stays, and is answered so.

Every command that is no write runs in three worlds: in a tick that is committed, in one whose commit fails, and not at
all.  Behind the tick that failed the server and its clients are as in the first world if the command was answered as
there, and as in the third if it was answered with an error.
"""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.dispatch import find_command
from riverbed.server.commands.request import Request
from riverbed.server.commands.table import COMMANDS, Flag
from riverbed.server.execution.control import spool, transaction_replies
from riverbed.server.replication.follower import State
from tests.support.raw import Frames
from tests.support.ticks import Client, Ticks, in_loop

MISCONF = b"-MISCONF "

# For each command that is no write: what a client sends in one tick, behind what it has sent in earlier ones.
CALLS = """
AUTH secret
ACL
ACL CAT
ACL CAT stream
ACL DELUSER default
ACL DELUSER nobody
ACL DRYRUN default PING
ACL GENPASS x
ACL GETUSER default
ACL HELP
ACL LIST
ACL LOAD
ACL LOG
ACL SAVE
ACL SETUSER new on nopass +ping
ACL SETUSER new +nonsense
ACL USERS
ACL WHOAMI
HELLO 3 SETNAME new
HELLO 4
QUIT
CLIENT SETNAME old; SELECT 3; SUBSCRIBE old >> RESET
HELLO 3; MULTI; SUBSCRIBE old >> RESET
MULTI; ECHO queued >> RESET
PING
PING text
ECHO text
SELECT 5
SELECT 99
TIME
LASTSAVE
SAVE
BGSAVE
BGREWRITEAOF
SHUTDOWN NOSAVE
SHUTDOWN ABORT
MONITOR
COMMAND
COMMAND COUNT
COMMAND INFO get
COMMAND LIST
COMMAND DOCS xadd
COMMAND GETKEYS XLEN k
COMMAND GETKEYSANDFLAGS XLEN k
COMMAND HELP
CONFIG
CONFIG GET maxclients
CONFIG SET maxclients 77
CONFIG SET maxclients 77 appendfsync everysec
CONFIG SET requirepass secret
CONFIG SET nonsense 1
CONFIG REWRITE
CONFIG RESETSTAT
CONFIG HELP
DEBUG SLEEP 0
DEBUG DIGEST
INFO
LATENCY
LATENCY DOCTOR
LATENCY HELP
LATENCY HISTOGRAM nonsense
LATENCY HISTORY command
LATENCY LATEST
LATENCY RESET
MEMORY
MEMORY DOCTOR
MEMORY HELP
MEMORY MALLOC-STATS
MEMORY PURGE
MEMORY STATS
MODULE
MODULE HELP
MODULE LIST
REPLICAOF NO ONE
REPLICAOF 127.0.0.1 1
SLAVEOF 127.0.0.1 1
FAILOVER
FAILOVER ABORT
ROLE
REPLCONF listening-port 7000
PSYNC ? nonsense
SYNC
WAIT 0 0
WAIT 1 0
WAITAOF 0 0 0
RIVERBED
RIVERBED HELP
RIVERBED LAG s g
RIVERBED REPAIR
RIVERBED SNAPSHOT KEEP 0
RIVERBED SNAPSHOTS
SLOWLOG
SLOWLOG GET
SLOWLOG HELP
SLOWLOG LEN
SLOWLOG RESET
CLIENT
CLIENT HELP
CLIENT ID
CLIENT SETNAME old >> CLIENT GETNAME
CLIENT SETNAME new
CLIENT SETNAME old >> CLIENT SETNAME new
CLIENT SETINFO LIB-NAME new
CLIENT REPLY ON
CLIENT REPLY OFF
CLIENT REPLY SKIP
CLIENT REPLY OFF >> CLIENT REPLY ON
CLIENT NO-EVICT ON
CLIENT NO-TOUCH ON
CLIENT TRACKING OFF
CLIENT TRACKINGINFO
CLIENT CACHING YES
CLIENT GETREDIR
CLIENT INFO
CLIENT LIST
CLIENT KILL ID 1
CLIENT KILL ID 4 SKIPME no
CLIENT PAUSE 1000000 WRITE
CLIENT PAUSE 1000000 WRITE >> CLIENT UNPAUSE
CLIENT UNBLOCK 3
CLIENT UNBLOCK 3 ERROR
SUBSCRIBE new newer
SUBSCRIBE old >> UNSUBSCRIBE
PSUBSCRIBE new*
PSUBSCRIBE old >> PUNSUBSCRIBE
SSUBSCRIBE new
SSUBSCRIBE old >> SUNSUBSCRIBE
PUBLISH news text
SPUBLISH news text
HELLO 3; SUBSCRIBE news >> PUBLISH news text
PUBSUB
PUBSUB CHANNELS
PUBSUB SHARDCHANNELS
PUBSUB NUMSUB news
PUBSUB SHARDNUMSUB news
PUBSUB NUMPAT
PUBSUB HELP
MULTI
MULTI >> MULTI
MULTI >> ECHO queued
MULTI >> TYPE k
MULTI >> NONSENSE
MULTI; ECHO queued >> EXEC
MULTI; SELECT 5; CLIENT SETNAME new >> EXEC
MULTI; NONSENSE >> EXEC
MULTI; XLEN k >> EXEC
EXEC
MULTI; ECHO queued >> DISCARD
WATCH k
WATCH k j
WATCH k j >> UNWATCH
WATCH k; MULTI >> EXEC
WATCH k; MULTI >> DISCARD
XGROUP
XGROUP HELP
XINFO
XINFO HELP
OBJECT
OBJECT HELP
OBJECT ENCODING k
OBJECT FREQ k
OBJECT IDLETIME k
OBJECT REFCOUNT k
MEMORY USAGE k
XPENDING k g
XRANGE k - +
XREVRANGE k + -
XREAD STREAMS k 0
XREAD BLOCK 0 STREAMS k $
XINFO STREAM k
XINFO GROUPS k
XINFO CONSUMERS k g
TTL k
PTTL k
EXPIRETIME k
PEXPIRETIME k
EXISTS k
TOUCH k
TYPE k
KEYS *
SCAN 0
RANDOMKEY
DBSIZE
XLEN k
"""


@dataclass(frozen=True)
class Call:
    before: list[str]
    lines: list[str]

    @classmethod
    def parse(cls, text: str) -> Call:
        before, _, lines = text.rpartition(" >> ")
        return cls(before.split("; ") if before else [], lines.split("; "))


ALL_CALLS = [Call.parse(line) for line in CALLS.split("\n") if line]

# What follows lengths, the last command, the tables, or chance, and is no part of what a command has done.
_VOLATILE = re.compile(
    rb" (?:argv-mem|tot-mem|tot-net-in|tot-net-out|tot-cmds|events|qbuf|multi-mem|cmd|omem)=\S*"
    rb"|[$=]\d+\r\n|[0-9a-f]{40}|(?:aof|repl_backlog|rdb|mem|riverbed)_\w+:[^\r]*|\w*offset:\d+|:\d+\r\n"
)


class World:
    """A server with an observer, a listener, a client that waits for a key, and the client whose command is tried."""

    def __init__(self, directory: Path, *, monitored: bool = False) -> None:
        # a busy machine makes any command slow, and SLOWLOG GET would show it
        self.ticks = Ticks(directory, appendfsync="always", slowlog_log_slower_than=1 << 40)
        self.observer, self.listener, self.blocked, self.client, self.writer = (self.ticks.connect() for _ in range(5))
        self.monitored = monitored
        self.heard: list[bytes] = []
        self.errors: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.errors.append(str(context)))

    async def prepare(self, before: list[str]) -> None:
        ticks = self.ticks
        await ticks.ask(self.writer, "XADD k 1-1 f v", "XGROUP CREATE k g 0")
        await ticks.ask(self.listener, "SUBSCRIBE news", "SSUBSCRIBE news")
        await ticks.ask(self.blocked, "XREAD BLOCK 0 STREAMS nothing $")
        if self.monitored:
            await ticks.ask(self.observer, "MONITOR")
        for line in before:
            await ticks.ask(self.client, line)
        self.observer.replies()

    async def run(self, lines: list[str]) -> list[bytes]:
        """What the client is sent for these commands, in a tick with a write of another client before them."""
        self.writer.send("XADD k 2-1 f v")
        self.client.send(*lines)
        await self.ticks.settle()
        for _ in range(10_000):
            block = self.client.session.blocked
            if (block is None or not block.is_for_work) and not self._connects():
                break
            await asyncio.sleep(0.001)  # a thread works for it
        await self.ticks.settle()  # what it has answered goes out with a tick
        return self.client.replies()

    def _connects(self) -> bool:
        """Whether a replica looks for its primary, where it finds nothing; ROLE shows it."""
        follower = self.ticks.server.replication.follower
        return follower is not None and follower.state is State.CONNECTING

    async def state(self) -> list[Any]:
        """All that a command may have changed but the tables, as clients see it."""
        ticks = self.ticks
        look = ticks.connect()
        sessions = [client.session for client in (self.observer, self.listener, self.blocked, self.client)]
        seen: list[Any] = [self.listener.replies(), self.client.is_closed, self.blocked.is_closed]
        lines = ("CLIENT LIST", "CONFIG GET *", "INFO replication", "INFO clients", "INFO persistence", "ROLE")
        for line in (*lines, "SLOWLOG LEN", "PUBSUB CHANNELS", "PUBSUB NUMSUB new", "PUBSUB SHARDCHANNELS"):
            seen += [_steady(await self._answer(look, line))]
        for session in sessions:
            seen.append((session.replies_off, session.skip_replies, session.transaction.watch_until_ms))
        seen.append(ticks.server.stopping.is_ending)
        # whether a transaction is open, and runs
        seen.append(await ticks.ask(self.client, "ECHO behind", "EXEC"))
        return seen

    async def _answer(self, client: Client, line: str) -> bytes:
        """The reply to a line, which a busy machine may give later: some work goes on only as long as a time allows."""
        replies = await self.ticks.ask(client, line)
        for _ in range(10_000):
            if replies:
                break
            await asyncio.sleep(0.001)
            replies = client.replies()
        [reply] = replies
        return reply

    async def end(self) -> None:
        await self.ticks.server.end_work()
        self.ticks.engine.abandon()
        assert self.errors == []


def _steady(reply: bytes) -> list[bytes]:
    return _VOLATILE.sub(b"", reply).split(b"\n")


@dataclass
class Seen:
    """What the client is sent for its commands, what a monitor is shown of them, and the state behind them."""

    answer: list[bytes]
    shown: list[bytes]
    state: list[Any]
    is_cut_off: bool


async def _world(
    directory: Path, before: list[str], lines: list[str], faults: dict[str, int], *, monitored: bool
) -> Seen:
    directory = Path(tempfile.mkdtemp(dir=directory))
    world = World(directory, monitored=monitored)
    await world.prepare(before)
    for operation, after in faults.items():
        world.ticks.files.fail(operation, errno.EIO, after=after)
    answer = await world.run(lines)
    world.ticks.files.forgive()
    seen = Seen(answer, world.observer.replies(), [], world.client.is_closed)
    seen.state += await world.state()
    await world.end()
    shutil.rmtree(directory)
    return seen


def test_every_command_that_is_no_write_is_tried() -> None:
    load_commands()
    tried = {id(find_command([word.encode() for word in line.split()])) for call in ALL_CALLS for line in call.lines}
    rows = [row for command in COMMANDS.values() for row in (command, *command.subcommands.values())]
    others = [row.name for row in rows if id(row) not in tried]
    assert [name for name in others if not find_command(name.split()).flags & (Flag.WRITE | Flag.LOG_ONLY)] == []


# Of a tick with this policy, those that make its commit fail; the others come behind it.
WRITE_FAILS = {"write": 0}
SYNC_FAILS = {"sync": 0}
OUTCOME_UNKNOWN = {"sync": 0, "truncate": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("monitored", "faults"), [(False, [WRITE_FAILS, OUTCOME_UNKNOWN]), (True, [SYNC_FAILS])], ids=["plain", "monitored"]
)
def test_what_a_command_is_answered_in_a_tick_that_fails_is_what_it_has_done(
    tmp_path: Path, monitored: bool, faults: list[dict[str, int]]
) -> None:
    wrong: list[str] = []

    async def body() -> None:
        for call in ALL_CALLS:
            done = await _world(tmp_path, call.before, call.lines, {}, monitored=monitored)
            # an error ends a transaction, whatever it is
            instead = ["DISCARD"] if call.lines == ["EXEC"] and "MULTI" in call.before else []
            not_done = await _world(tmp_path, call.before, instead, WRITE_FAILS, monitored=monitored)
            for fault in faults:
                seen = await _world(tmp_path, call.before, call.lines, fault, monitored=monitored)
                if fault is OUTCOME_UNKNOWN and seen.is_cut_off:
                    continue  # it knows nothing
                expected = done
                if seen.answer != done.answer:
                    assert seen.answer[-1].startswith(b"-"), seen.answer
                    expected = not_done
                if (seen.state, seen.shown) != (expected.state, done.shown):
                    difference = _difference([seen.state, seen.shown], [expected.state, done.shown])
                    wrong.append(f"{call} {fault}: {seen.answer!r:.100}: {difference}"[:600])

    in_loop(body())
    assert not wrong, "\n\n".join(wrong)


def _difference(found: list[Any], expected: list[Any]) -> str:
    return "; ".join(
        f"{one!r} is not {two!r}" for one, two in zip(_flat(found), _flat(expected), strict=False) if one != two
    )


def _flat(state: Any) -> list[Any]:
    return [line for part in state for line in _flat(part)] if isinstance(state, list) else [state]


# -- transactions that do both -----------------------------------------------------------------------------------------

BOTH = ("CLIENT SETNAME new", "XADD k 7-1 f v", "SELECT 1", "CONFIG SET maxclients 77", "XADD k 7-1 f v", "ECHO text")
ANSWERS = [b"+OK\r\n", None, b"+OK\r\n", b"+OK\r\n", None, b"$4\r\ntext\r\n"]


async def _execute(ticks: Ticks, client: Client, commands: tuple[str, ...]) -> list[bytes]:
    """The replies that EXEC has for them."""
    *_, reply = await ticks.ask(client, "MULTI", *commands, "EXEC")
    assert reply.startswith(b"*%d\r\n" % len(commands)), reply
    frames = Frames()
    frames.feed(reply.partition(b"\r\n")[2])
    return [frames.next() or b"" for _ in commands]


def _assert_done_in_part(ticks: Ticks, client: Client, replies: list[bytes], error: bytes) -> None:
    """Each command is answered for itself, and no table has changed."""
    assert [None if reply.startswith(error) else reply for reply in replies] == ANSWERS
    assert (client.session.names.client, client.session.db.number, ticks.config.maxclients) == (b"new", 1, 77)
    assert client.session.transaction.queued is None
    assert [db.size for db in ticks.engine.txn.databases[:2]] == [0, 0]


def test_a_transaction_that_changes_tables_and_settings_is_answered_by_parts_when_its_commit_fails(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        ticks.files.fail("write", errno.ENOSPC)
        _assert_done_in_part(ticks, client, await _execute(ticks, client, BOTH), MISCONF)
        ticks.close()

    in_loop(body())


def test_so_is_one_with_replies_that_are_too_long_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG_BYTES", "_MIN_ROOM", "_BYTES_A_COMMAND"):
        monkeypatch.setattr(transaction_replies, name, 0)
    text = "x" * 1000

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, f"XADD there 1-1 f {text}")
        ticks.files.fail("write", errno.ENOSPC)
        replies = await _execute(ticks, client, (*BOTH, f"ECHO {text}", "XRANGE there - +", f"ECHO {text}"))
        echo = b"$1000\r\n%b\r\n" % text.encode()
        assert [replies.pop(), replies.pop()[:9], replies.pop()] == [echo, MISCONF, echo]
        assert [None if reply.startswith(MISCONF) else reply for reply in replies] == ANSWERS
        assert ticks.executor.transactions.space.bytes == 0
        ticks.close()

    in_loop(body())


def test_so_is_one_that_has_no_room_for_its_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG_BYTES", "_BYTES_A_COMMAND"):
        monkeypatch.setattr(transaction_replies, name, 0)
    monkeypatch.setattr(spool, "MAX_SPOOLED_BYTES", 0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        replies = await _execute(ticks, client, (*BOTH, "XRANGE k - +"))
        assert replies.pop().startswith(b"-ERR EXEC was undone: ")
        _assert_done_in_part(ticks, client, replies, b"-ERR EXEC was undone: ")
        ticks.close()

    in_loop(body())


def test_so_is_one_that_falls_over_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_commands()

    def fail(request: Request) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(COMMANDS[b"XTRIM"], "handler", fail)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        replies = await _execute(ticks, client, (*BOTH, "XTRIM k MAXLEN 0"))
        assert replies.pop().startswith(b"-ERR internal error: exec was undone")
        _assert_done_in_part(ticks, client, replies, b"-ERR internal error: exec was undone")
        ticks.close()

    in_loop(body())


def test_a_transaction_that_asks_for_a_checkpoint_is_still_undone_as_a_whole(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        ticks.files.fail("write", errno.ENOSPC, after=1)
        ticks.files.fail("write", errno.ENOSPC)
        replies = await _execute(ticks, client, ("XADD k 1-1 f v", "BGSAVE", "XADD k 2-1 f v"))
        assert [reply[:9] for reply in replies] == [MISCONF, b"+Backgrou", MISCONF]
        assert await ticks.ask(client, "EXISTS k") == [b":0\r\n"]
        ticks.close()

    in_loop(body())


# -- a server that gives up --------------------------------------------------------------------------------------------


def test_a_server_that_has_lost_its_state_answers_no_client_and_writes_nothing_any_more(tmp_path: Path) -> None:
    async def body() -> None:
        world = World(tmp_path, monitored=False)
        ticks = world.ticks
        await world.prepare([])
        late = ticks.connect()
        late.send("XREAD BLOCK 5 STREAMS nothing $")
        sliced = ticks.connect()
        sliced.send_words("XACK", "k", "g", *(f"{number}-1" for number in range(1, 5000)))
        await asyncio.sleep(0)
        assert sliced.session.is_sliced
        for client in (world.client, sliced, late):
            client.replies()
        ticks.files.fail("write", errno.EIO)
        ticks.engine.tables.begin = _lose_state
        assert await world.run(["CONFIG SET maxclients 77", "SELECT 1", "PING"]) == []
        assert ticks.executor.gave_up
        assert all(client.is_closed for client in (world.client, world.writer, world.listener, world.blocked, sliced))
        written = {path: bytes(ticks.files.data(path)) for path in ticks.files.paths()}
        ticks.clock.now_ms += 10
        ticks.executor.blocking.deadline_passed()
        await asyncio.sleep(0.3)
        await ticks.settle()
        assert [client.replies() for client in (world.client, world.writer, sliced, late, world.blocked)] == [[]] * 5
        assert {path: bytes(ticks.files.data(path)) for path in ticks.files.paths()} == written
        await world.end()

    in_loop(body())


def _lose_state() -> None:
    raise lmdb.Error("the tables cannot be read")
