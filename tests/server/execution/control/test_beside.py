"""A long transaction ends its turn in the middle: clients that need no table are answered, and nothing else happens.

Here each command of a transaction ends a turn, and what clients send in between comes by `Sockets` that a test fills.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from riverbed.server.commands import client_state, load_commands
from riverbed.server.commands.request import Request
from riverbed.server.commands.session import Session
from riverbed.server.commands.table import COMMANDS, Command
from riverbed.server.execution import sliced_commands
from riverbed.server.execution.control import transaction_replies, transactions
from riverbed.server.execution.control.beside import may_run_beside
from riverbed.server.execution.slow_path import Turn
from riverbed.server.protocol.replies import LONG_BYTES
from riverbed.store.errors import StateLostError
from tests.support.in_process import HandClock
from tests.support.ticks import Client, Ticks, in_loop

N = 20
WRITES = [f"XADD s {number}-1 f v" for number in range(1, N + 1)]
ADDED = [b"XADD s %d-1 f v" % number for number in range(1, N + 1)]
LOGGED = [b"MULTI", *ADDED, b"EXEC"]
PONG = b"+PONG\r\n"
MULTI = "Multi"  # spelled so, a transaction of XADDs is queued even where it came whole


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "TURN_NS", 0)
    monkeypatch.setattr(client_state, "_CHUNK_PARTS", 0)  # queue no runs: no turn ends in the middle of one


class Glances:
    """Sockets on which `come` puts something at each look, the first of which has number 1."""

    def __init__(self, ticks: Ticks, come: Callable[[int], None]) -> None:
        self.looks = 0
        self.left: list[Session] = []
        self.is_open = False
        self._come = come
        ticks.executor.beside.sockets = self

    def begin(self, sessions: Iterable[Session]) -> None:
        self.is_open = True

    def read(self) -> None:
        assert self.is_open
        self.looks += 1
        self._come(self.looks)

    def leave(self, session: Session) -> None:
        self.left.append(session)

    def end(self) -> None:
        self.is_open = False


async def execute(ticks: Ticks, client: Client, *commands: str) -> bytes:
    """The reply to EXEC of these commands."""
    return (await ticks.ask(client, MULTI, *commands, "EXEC"))[-1]


def array(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(parts)


def ids(*numbers: int) -> list[bytes]:
    return [b"$%d\r\n%d-1\r\n" % (len(f"{number}-1"), number) for number in numbers]


WHOLE = array(*ids(*range(1, N + 1)))


def at(look: int, action: Callable[[], object]) -> Callable[[int], None]:
    """Do something at one look."""

    def come(number: int) -> None:
        if number == look:
            action()

    return come


# -- who is answered ---------------------------------------------------------------------------------------------------


def every_command() -> Iterator[Command]:
    load_commands()
    for row in COMMANDS.values():
        yield row
        yield from row.subcommands.values()


def test_only_what_concerns_the_clients_own_connection_runs_beside_a_transaction() -> None:
    beside = {row.full_name.decode() for row in every_command() if row.is_for_clients and may_run_beside(row)}
    of_client = "id getname setname setinfo reply no-touch tracking trackinginfo caching getredir info help"
    assert beside == {
        *("auth", "client", "echo", "hello", "lastsave", "ping", "select", "time", "unwatch"),
        *(f"client|{name}" for name in of_client.split()),
    }


def test_a_ping_is_answered_at_each_turn_of_a_transaction(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        answered: list[list[bytes]] = []

        def come(look: int) -> None:
            answered.append(other.replies())
            other.send("PING", f"ECHO {look}")

        glances = Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert glances.looks >= N - 1
        assert answered[0] == []
        assert answered[1:] == [[PONG, b"$%d\r\n%d\r\n" % (len(str(n)), n)] for n in range(1, glances.looks)]
        assert not glances.left
        assert not glances.is_open
        assert ticks.batches() == [LOGGED]
        ticks.close()

    in_loop(body())


def test_what_came_in_the_tick_of_the_transaction_is_answered_too(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        before, client, behind, writer, reader = (ticks.connect() for _ in range(5))
        seen: list[list[bytes]] = []
        Glances(ticks, at(2, lambda: seen.extend(each.replies() for each in (before, behind, writer, reader))))
        before.send("PING")
        writer.send("XADD s 0-1 f v", "PING")
        client.send(MULTI, *WRITES, "EXEC")
        behind.send("PING", "XLEN s", "PING")
        reader.send("XLEN s")
        await ticks.settle()
        # the first entry is not in the log yet, so neither its reply nor one behind it may go out
        assert seen == [[PONG], [PONG], [], []]
        length = b":%d\r\n" % (N + 1)
        assert writer.replies() == [b"$3\r\n0-1\r\n", PONG]
        assert behind.replies() == [length, PONG]
        assert reader.replies() == [length]
        assert client.replies()[-1] == WHOLE
        ticks.close()

    in_loop(body())


def test_replies_for_which_a_turn_has_no_time_are_sent_in_the_next_one(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, *others = [ticks.connect() for _ in range(4)]
        ticks.executor.outbox.few, ticks.executor.outbox.turn_s = 0, 0.0
        seen: list[list[bytes]] = [[] for _ in others]

        def come(look: int) -> None:
            for number, other in enumerate(others):
                seen[number] += other.replies()
                if look == 1:
                    other.send("PING", "ECHO a")
                elif look == 6:
                    other.send("ECHO b", "XLEN s")

        Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert seen == [[PONG, b"$1\r\na\r\n", b"$1\r\nb\r\n"]] * 3
        await ticks.settle()
        assert [other.replies() for other in others] == [[b":%d\r\n" % N]] * 3
        ticks.close()

    in_loop(body())


def test_a_client_that_needs_tables_waits_with_all_behind_it_and_is_read_no_further(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other, queuing, third = (ticks.connect() for _ in range(4))
        await ticks.ask(queuing, "MULTI")
        seen: list[list[bytes]] = []

        def come(look: int) -> None:
            if look == 1:
                other.send("PING", "XLEN s", "ECHO behind")
                queuing.send("PING")
                third.send("XRANGE s - + COUNT 1")
            elif look == 4:
                seen.extend(each.replies() for each in (other, queuing, third))

        glances = Glances(ticks, come)
        client.send(MULTI, *WRITES, "EXEC")
        await ticks.settle()
        assert seen == [[PONG], [], []]
        assert set(glances.left) == {other.session, queuing.session, third.session}
        assert other.replies() == [b":%d\r\n" % N, b"$6\r\nbehind\r\n"]
        assert queuing.replies() == [b"+QUEUED\r\n"]
        assert third.replies()[0].startswith(b"*1\r\n*2\r\n$3\r\n1-1\r\n")
        ticks.close()

    in_loop(body())


def test_long_pipelines_stay_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        pipeline = [f"ECHO {n}" if n % 500 else "XLEN s" for n in range(1, 3001)]
        Glances(ticks, at(1, lambda: other.send(*pipeline)))
        client.send(MULTI, *WRITES, "EXEC")
        for _ in range(20):
            await ticks.settle()
        replies = other.replies()
        assert [int(reply.split(b"\r\n")[1]) for reply in replies if reply[:1] == b"$"] == [
            n for n in range(1, 3001) if n % 500
        ]
        assert [reply for reply in replies if reply[:1] == b":"] == [b":%d\r\n" % N] * 6
        ticks.close()

    in_loop(body())


def test_a_pause_and_a_refusal_hold_beside_a_transaction_as_well(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, "ACL SETUSER few on nopass +ping")
        await ticks.ask(other, "AUTH few x")
        seen: list[bytes] = []
        Glances(ticks, lambda look: other.send("PING", "ECHO a") if look == 1 else seen.extend(other.replies()))
        await execute(ticks, client, *WRITES)
        assert seen[0] == PONG
        assert seen[1].startswith(b"-NOPERM")
        ticks.close()

    in_loop(body())


# -- nothing comes between ---------------------------------------------------------------------------------------------


def test_the_loop_does_not_turn_while_a_transaction_is_under_way(tmp_path: Path) -> None:
    """So no timer, no chore, no task of the server can come between: neither reads, nor changes, nor commits."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        loop = asyncio.get_running_loop()
        ran: list[bytes] = []

        async def task() -> None:
            ran.append(b"task")

        def last_commit() -> int:
            number: int = ticks.engine.tables.env.info()["last_txnid"]
            return number

        before = last_commit()

        def come(look: int) -> None:
            if look == 1:
                loop.call_soon(ran.append, b"callback")
                loop.call_later(0, ran.append, b"timer")
                tasks.append(loop.create_task(task()))
                ticks.server.checkpoints.checkpoint_later()
                ticks.server.rewriting.schedule()
                ticks.executor.want_tick()
            assert not ran
            assert not ticks.engine.log.end.offset
            assert last_commit() == before

        tasks: list[asyncio.Task[None]] = []
        glances = Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert glances.looks >= N - 1
        await ticks.settle()
        assert sorted(ran) == [b"callback", b"task", b"timer"]
        assert ticks.batches() == [LOGGED]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("SAVE", b"+OK\r\n"),
        ("BGSAVE", b"+Background saving started\r\n"),
        ("BGREWRITEAOF", b"+Background append only file rewriting started\r\n"),
        ("CONFIG SET appendfsync no", b"+OK\r\n"),
        ("CLIENT KILL ID {id}", b":1\r\n"),
        ("CLIENT PAUSE 1", b"+OK\r\n"),
        ("SCAN 0", array(b"$1\r\n0\r\n", array(b"$1\r\ns\r\n"))),
        ("EXISTS s", b":1\r\n"),
        ("DEBUG RELOAD", b"+OK\r\n"),
        ("FLUSHALL", b"+OK\r\n"),
        ("XADD s 900-1 f v", b"$5\r\n900-1\r\n"),
        ("PUBLISH a b", b":0\r\n"),
        ("REPLICAOF NO ONE", b"+OK\r\n"),
    ],
)
def test_what_another_client_asks_in_the_middle_is_done_behind_the_transaction(
    tmp_path: Path, line: str, reply: bytes
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        seen: list[bytes] = []

        def come(look: int) -> None:
            if look == 3:
                other.send(line.format(id=client.session.id))
            seen.extend(other.replies())

        Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert not seen
        assert other.replies() == [reply]
        assert ticks.batches()[0] == LOGGED
        await ticks.server.end_work()
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("inside", "asked", "in_the_middle"),
    [
        (("ACL SETUSER eve on >secret", "ACL SETUSER eve resetpass off"), "AUTH eve secret", b"+OK"),
        (("CONFIG SET requirepass secret", "CONFIG SET requirepass other"), "AUTH secret", b"+OK"),
        (("ACL SETUSER default -ping", "ACL SETUSER default +ping"), "PING", b"-NOPERM"),
    ],
)
def test_settings_in_the_middle_of_a_transaction_are_seen_by_nobody(
    tmp_path: Path, inside: tuple[str, str], asked: str, in_the_middle: bytes
) -> None:
    first, last = inside

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, *others = [ticks.connect() for _ in range(2 * N)]
        # each asks once: a wrong password makes a client wait
        glances = Glances(ticks, lambda look: others[look].send(asked))
        reply = await execute(ticks, client, *WRITES[:5], first, *WRITES[5:10], last, *WRITES[10:])
        assert reply.count(b"+OK") == 2
        assert glances.looks > 5
        await ticks.settle()
        assert [each for other in others for each in other.replies() if each.startswith(in_the_middle)] == []
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    "shown", ["CONFIG GET maxclients", "ACL LIST", "CLIENT LIST", "SLOWLOG LEN", "ACL GETUSER default"]
)
def test_a_turn_ends_behind_a_command_that_only_shows_settings(tmp_path: Path, shown: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        glances = Glances(ticks, lambda look: None)
        await execute(ticks, client, shown, *WRITES)
        assert glances.looks >= N - 1
        ticks.close()

    in_loop(body())


def test_blocked_readers_see_all_of_it_and_watches_break(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, reader, watcher, other = (ticks.connect() for _ in range(4))
        reader.send("XREAD BLOCK 0 STREAMS s $")
        await ticks.ask(watcher, "WATCH s")
        await ticks.ask(watcher, "MULTI", "XLEN s")
        seen: list[bytes] = []

        def come(look: int) -> None:
            if look == 2:
                watcher.send("EXEC")
            other.send("PING")
            seen.extend([*reader.replies(), *watcher.replies()])

        Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert not seen
        assert reader.replies()[0].count(b"-1\r\n") == N
        assert watcher.replies() == [b"*-1\r\n"]
        ticks.close()

    in_loop(body())


def test_messages_of_a_transaction_come_behind_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, listener = ticks.connect(), ticks.connect()
        await ticks.ask(listener, "HELLO 3", "SUBSCRIBE news")
        await ticks.ask(client, "HELLO 3", "SUBSCRIBE news")
        seen: list[bytes] = []

        def come(look: int) -> None:
            if look == 2:
                listener.send("PING")  # it waits behind the message
            seen.extend([*listener.replies(), *client.replies()[2:]])

        Glances(ticks, come)
        *_, reply, first, second = await ticks.ask(client, "MULTI", "PUBLISH news a", *WRITES, "PUBLISH news b", "EXEC")
        assert [each for each in seen if each != b"+QUEUED\r\n"] == []
        news = [b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\n%b\r\n" % text for text in (b"a", b"b")]
        assert reply == array(b":2\r\n", *ids(*range(1, N + 1)), b":2\r\n")
        assert [first, second] == news
        assert listener.replies() == [*news, PONG]
        ticks.close()

    in_loop(body())


def test_a_client_that_sends_what_is_no_request_is_told_so_and_closed_behind_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        Glances(ticks, at(2, lambda: other.send_bytes(b"PING\r\n*1\r\n$x\r\n")))
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert other.replies() == [PONG, b"-ERR Protocol error: invalid bulk length\r\n"]
        assert other.is_closed
        ticks.close()

    in_loop(body())


def test_time_stands_still_for_a_transaction(tmp_path: Path) -> None:
    async def body() -> None:
        clock = HandClock()
        ticks = Ticks(tmp_path, clock=clock)
        client = ticks.connect()
        await ticks.ask(client, "XADD t 1-1 f v", "PEXPIRE t 1000")

        def come(look: int) -> None:
            clock.now_ms += 900

        Glances(ticks, come)
        assert await execute(ticks, client, *["EXISTS t"] * 5, "XADD u * f v") == array(
            *[b":1\r\n"] * 5, b"$15\r\n1700000000000-0\r\n"
        )
        assert await ticks.ask(client, "EXISTS t") == [b":0\r\n"]
        ticks.close()

    in_loop(body())


async def beside_a_monitor(ticks: Ticks) -> tuple[Client, Client]:
    """A client and a monitor, where a read of `big` needs a view."""
    client, monitor = ticks.connect(), ticks.connect()
    client.send_words("XADD", "big", "1-1", "f", b"v" * (LONG_BYTES + 1))
    await ticks.settle()
    await ticks.ask(monitor, "MONITOR")
    return client, monitor


def test_monitors_are_shown_a_transaction_that_waits_for_a_view_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, monitor = await beside_a_monitor(ticks)
        client.send("multi", "xlen big", "xrange big - +", "exec")
        await ticks.settle()
        assert client.replies()[-2].endswith(b"+QUEUED\r\n")
        shown = [line.split(b"] ")[1].split()[0] for line in monitor.replies()]
        assert shown == [b'"multi"', b'"xlen"', b'"xrange"', b'"exec"']
        ticks.close()

    in_loop(body())


def test_monitors_are_shown_the_exec_of_a_client_that_goes_meanwhile(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, monitor = await beside_a_monitor(ticks)
        client.send("MULTI", "XLEN big", "XRANGE big - +", "EXEC")
        await asyncio.sleep(0)
        assert client.session.is_sliced
        client.leave()
        await ticks.settle()
        shown = [line.split(b"] ")[1].split()[0] for line in monitor.replies()]
        assert shown == [b'"MULTI"', b'"XLEN"', b'"EXEC"']
        ticks.close()

    in_loop(body())


def test_a_monitor_that_resets_is_not_shown_that(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "HELLO 3", f"SUBSCRIBE {' '.join(f'c{number}' for number in range(1200))}", "MONITOR")
        client.replies()
        client.send("RESET", "PING")
        await ticks.settle()
        assert client.replies() == [b"+RESET\r\n", b"+PONG\r\n"]
        ticks.close()

    in_loop(body())


def test_monitors_are_shown_its_commands_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, monitor, other = (ticks.connect() for _ in range(3))
        await ticks.ask(monitor, "MONITOR")
        Glances(ticks, at(3, lambda: other.send("PING")))
        assert await execute(ticks, client, *WRITES) == WHOLE
        shown = [line.split(b"] ")[1].split(b" ")[:3] for line in monitor.replies()]
        assert [words[2] for words in shown if words[0] == b'"XADD"'] == [b'"%d-1"' % n for n in range(1, N + 1)]
        assert [b'"PING"\r\n'] in shown
        assert shown[-1] == [b'"EXEC"\r\n']
        ticks.close()

    in_loop(body())


def test_its_time_is_counted_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        Glances(ticks, lambda look: None)
        await ticks.ask(client, "CONFIG RESETSTAT")
        assert await execute(ticks, client, *WRITES) == WHOLE
        stats = ticks.executor.stats
        of_exec, of_xadd = stats.counters(b"exec"), stats.counters(b"xadd")
        assert (of_exec.calls, of_xadd.calls, sum(of_exec.buckets)) == (1, N, 1)
        assert of_exec.nanoseconds > of_xadd.nanoseconds > 0
        ticks.close()

    in_loop(body())


# -- its end -----------------------------------------------------------------------------------------------------------


def test_a_commit_that_fails_undoes_all_of_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        seen: list[bytes] = []
        Glances(ticks, lambda look: other.send("PING") if look == 2 else seen.extend(other.replies()))
        ticks.files.fail("write", errno.ENOSPC)
        assert (await execute(ticks, client, *WRITES)).startswith(b"-MISCONF")
        assert seen == [PONG]
        assert await ticks.ask(other, "EXISTS s") == [b":0\r\n"]
        assert ticks.batches() == []
        ticks.close()

    in_loop(body())


def test_a_commit_that_fails_leaves_what_rests_on_no_table(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        Glances(ticks, lambda look: None)
        ticks.files.fail("write", errno.ENOSPC)
        reply = await execute(ticks, client, "XADD s 1-1 f v", "XLEN s", "ECHO a")
        first, second, third, fourth, *_ = reply.split(b"\r\n")
        assert (first, second[:8], third[:8], fourth) == (b"*3", b"-MISCONF", b"-MISCONF", b"$1")
        assert await ticks.ask(client, "EXISTS s") == [b":0\r\n"]
        ticks.close()

    in_loop(body())


def test_an_exception_in_a_later_turn_undoes_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_commands()

    def fail(request: Request) -> None:
        raise RuntimeError("a bug")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD t 1-1 f v")
        Glances(ticks, lambda look: None)
        monkeypatch.setattr(COMMANDS[b"XTRIM"], "handler", fail)
        other.send("XADD t 2-1 f v")
        reply = await execute(ticks, client, *WRITES, "XTRIM s MAXLEN 1")
        assert reply == b"-ERR internal error: exec was undone (RuntimeError)\r\n"
        assert other.replies() == [b"$3\r\n2-1\r\n"]
        assert await ticks.ask(other, "EXISTS s", "XLEN t") == [b":0\r\n", b":2\r\n"]
        assert ticks.batches() == [[b"XADD t 1-1 f v"], [b"XADD t 2-1 f v"]]
        ticks.close()

    in_loop(body())


def test_a_failure_of_a_client_that_it_wakes_leaves_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_commands()

    def fail(request: Request) -> None:
        raise RuntimeError("a bug")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, woken = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g $ MKSTREAM")
        assert await ticks.ask(woken, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >") == []
        Glances(ticks, lambda look: None)
        monkeypatch.setattr(COMMANDS[b"XREADGROUP"], "handler", fail)
        # the log has XCFGSET in comment lines, which no offset counts
        reply = await execute(ticks, client, *WRITES, "XCFGSET s IDMP-DURATION 7", *["XLEN s"] * 3)
        assert reply == array(*ids(*range(1, N + 1)), b"+OK\r\n", *[b":%d\r\n" % N] * 3)
        assert woken.replies() == [b"-ERR internal error: xreadgroup was undone (RuntimeError)\r\n"]
        assert await ticks.ask(client, "XLEN s") == [b":%d\r\n" % N]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_bug_beside_a_transaction_does_not_break_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    load_commands()

    def fail(request: Request) -> None:
        raise error

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        monkeypatch.setattr(COMMANDS[b"ECHO"], "handler", fail)

        def come(look: int) -> None:
            if look == 2:
                other.send("ECHO a")
            if look == 4:
                raise error

        Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert other.replies()[0].startswith(b"-")
        assert ticks.batches() == [LOGGED]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_clients_whose_requests_a_bug_beside_a_transaction_has_lost_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, before, other, behind, last = [ticks.connect() for _ in range(5)]
        admit = ticks.executor.beside._slow_path.run

        def run(session: Session, argv: list[bytes]) -> Turn:
            if argv == [b"ECHO", b"a"]:
                raise error
            return admit(session, argv)

        monkeypatch.setattr(ticks.executor.beside, "_slow_path", SimpleNamespace(run=run))

        def come(look: int) -> None:
            if look == 2:
                before.send("PING")
                other.send("PING", "ECHO a", "PING")
                behind.send("PING")
            if look == 4:
                last.send("PING")

        Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert [each.is_closed for each in (client, before, other, behind, last)] == [False, False, True, True, False]
        assert [each.replies() for each in (before, other, behind, last)] == [[PONG], [], [], [PONG]]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_clients_whose_replies_beside_a_transaction_cannot_be_sent_are_cut_off(
    tmp_path: Path, error: type[Exception]
) -> None:
    """One would mistake later replies for those that are lost, and others would wait for theirs."""

    def fail(data: bytes) -> None:
        raise error

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, before, broken, behind, last = [ticks.connect() for _ in range(5)]
        broken.session.send = fail

        def come(look: int) -> None:
            if look == 2:
                for each in (before, broken, behind):
                    each.send("PING")
            if look == 4:
                last.send("PING")

        Glances(ticks, come)
        assert await execute(ticks, client, *WRITES) == WHOLE
        assert [each.is_closed for each in (client, before, broken, behind, last)] == [False, True, True, True, False]
        assert last.replies() == [PONG]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("how", ["end", "leave"])
def test_a_client_that_hangs_up_in_the_middle_has_its_transaction_done(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        loop = asyncio.get_running_loop()
        Glances(ticks, at(2, lambda: loop.call_soon(getattr(client, how))))
        client.send(MULTI, *WRITES, "EXEC")
        await ticks.settle()
        assert await ticks.ask(other, "XLEN s") == [b":%d\r\n" % N]
        assert ticks.batches() == [LOGGED]
        ticks.close()

    in_loop(body())


def test_a_stop_in_the_middle_waits_for_its_end(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        loop = asyncio.get_running_loop()
        Glances(ticks, at(2, lambda: loop.call_soon(ticks.server.stopping.terminate)))
        assert await execute(ticks, client, *WRITES) == WHOLE
        await ticks.server.stopping.begun_to_end.wait()
        assert ticks.batches() == [LOGGED]
        ticks.close()

    in_loop(body())


# -- what it may consist of --------------------------------------------------------------------------------------------


def test_its_long_commands_end_turns_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("keys.keys._KEYS_A_SLICE", "streams.deletes.SLICE_IDS", "groups.pending._SLICE_ACKS"):
        monkeypatch.setattr(f"riverbed.server.commands.{size}", 10)
    numbers = range(1, 101)
    long = (
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g c COUNT 100 STREAMS s >",
        "XACK s g " + " ".join(f"{number}-1" for number in numbers),
        "XDEL s " + " ".join(f"{number}-1" for number in numbers),
        "DEL " + " ".join(f"k{number}" for number in numbers),
        "XLEN s",
        "DBSIZE",
    )

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, *(f"XADD {key} {n}-1 f v" for n in numbers for key in ("s", f"k{n}")))
        answered: list[bytes] = []

        def come(look: int) -> None:
            answered.extend(other.replies())
            other.send("PING")

        glances = Glances(ticks, come)
        reply = await execute(ticks, client, *long)
        assert reply.endswith(b":100\r\n:100\r\n:100\r\n:0\r\n:1\r\n")
        assert glances.looks > 25
        assert len(answered) >= glances.looks - 1
        *_, last = ticks.batches()
        assert (last[0], last[-1], last.count(b"MULTI"), last.count(b"EXEC")) == (b"MULTI", b"EXEC", 1, 1)
        assert await ticks.ask(client, "XPENDING s g") == [b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"]
        ticks.close()

    in_loop(body())


def test_reads_with_long_replies_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG_BYTES", "_MIN_ROOM"):
        monkeypatch.setattr(transaction_replies, name, 300)
    monkeypatch.setattr(transaction_replies, "_BYTES_A_COMMAND", 0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, *WRITES)
        seen: list[bytes] = []

        def come(look: int) -> None:
            other.send("PING", f"XADD s {look}00-1 f v")
            seen.extend(other.replies())

        glances = Glances(ticks, come)
        reply = await execute(ticks, client, "XLEN s", "XRANGE s - +", *["XLEN s"] * 5, "XRANGE s - +")
        assert glances.looks > 5
        assert PONG in seen
        assert reply.count(b":%d\r\n" % N) == 6
        assert reply.count(b"-1\r\n") == 2 * N
        ticks.executor.beside.sockets = None
        await ticks.settle()
        ticks.close()

    in_loop(body())


def test_a_long_command_of_another_client_does_nothing_between_the_turns_of_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONG_BYTES", "_MIN_ROOM"):
        monkeypatch.setattr(transaction_replies, name, 300)
    monkeypatch.setattr(transaction_replies, "_BYTES_A_COMMAND", 0)
    monkeypatch.setattr("riverbed.server.commands.keys.keys._KEYS_A_SLICE", 1)
    monkeypatch.setattr(sliced_commands, "SLICES_S", 60.0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, *WRITES)
        glances = Glances(ticks, lambda look: None)
        reads = ["XRANGE s - +", *["XLEN s"] * N]
        whole = await execute(ticks, client, *reads)  # the next view is there at once
        assert whole.count(b":%d\r\n" % N) == N
        looks = glances.looks
        other.send("DEL missing s")  # its first slice changes nothing
        assert await execute(ticks, client, *reads) == whole
        assert glances.looks > looks + N
        await ticks.settle()
        assert other.replies() == [b":1\r\n"]
        ticks.close()

    in_loop(body())


def test_a_read_that_finds_keys_expired_before_it_needs_a_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG_BYTES", "_MIN_ROOM"):
        monkeypatch.setattr(transaction_replies, name, 300)
    monkeypatch.setattr(transaction_replies, "_BYTES_A_COMMAND", 0)

    async def body() -> None:
        clock = HandClock()
        ticks = Ticks(tmp_path, clock=clock)
        client = ticks.connect()
        await ticks.ask(
            client, *WRITES, *(f"XADD {key} 1-1 f v" for key in "abc"), *(f"PEXPIRE {key} 9" for key in "abc")
        )
        before = len(ticks.batches())
        Glances(ticks, lambda look: None)
        clock.now_ms += 10
        reply = await execute(ticks, client, "EXISTS a", "EXISTS b", "EXISTS c", "XRANGE s - +")
        assert reply.startswith(b"*4\r\n:0\r\n:0\r\n:0\r\n*20\r\n")
        assert ticks.batches()[before:] == [[b"MULTI", b"DEL a", b"DEL b", b"DEL c", b"EXEC"]]
        ticks.close()

    in_loop(body())


def test_one_that_logs_a_single_command_has_no_frame(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        Glances(ticks, lambda look: None)
        await execute(ticks, client, "XLEN s", "XADD s 1-1 f v", "XLEN s", "SELECT 1", "XLEN s")
        await execute(ticks, client, "SELECT 2", "XADD s 1-1 f v", "SELECT 3", "XLEN s", "XADD s 2-1 f v", "XLEN s")
        entry = [b"XADD s 1-1 f v"]
        assert ticks.batches() == [entry, [b"MULTI", *entry, b"XADD s 2-1 f v", b"EXEC"]]
        ticks.close()

    in_loop(body())


def test_a_claim_whose_moment_comes_meanwhile_waits_for_the_end(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, reader = ticks.connect(), ticks.connect()
        await ticks.ask(writer, "XADD p 1-1 f v", "XGROUP CREATE p g 0", "XREADGROUP GROUP g dead STREAMS p >")
        await ticks.ask(reader, "XREADGROUP GROUP g c BLOCK 0 CLAIM 1000 STREAMS p >")
        before = len(ticks.batches())
        meanwhile: list[bytes] = []

        def come(look: int) -> None:
            if look == 2:
                ticks.clock.now_ms += 1002
                ticks.executor.blocking.deadline_passed()
            meanwhile.extend(reader.replies())

        glances = Glances(ticks, come)
        await execute(ticks, writer, *WRITES)
        assert glances.looks > 2
        assert meanwhile == []
        assert b"$3\r\n1-1\r\n" in reader.replies()[0]
        transaction, claim = ticks.batches()[before:]
        assert transaction == LOGGED
        assert claim[-1].startswith(b"XCLAIM p g c 0 1-1 ")
        ticks.close()

    in_loop(body())


def test_a_transaction_that_meets_a_defect_stops_the_server_and_leaves_no_client_behind(tmp_path: Path) -> None:
    """A part of it may have run, which the next tick would commit."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        ended: list[bool] = []

        def broken() -> None:
            raise KeyError("a defect")

        def fail() -> None:
            with pytest.raises(StateLostError):
                ticks.executor.beside.finish(broken, 0.0)
            ended.append(not sockets.is_open)

        sockets = Glances(ticks, at(1, fail))
        client = ticks.connect()
        await execute(ticks, client, *WRITES)
        assert ended == [True]
        ticks.close()

    in_loop(body())
