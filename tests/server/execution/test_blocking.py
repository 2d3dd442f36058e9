"""Who is tried when a key changes: those who may get something, in order of arrival, and one more of each line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.request import Request
from riverbed.server.commands.table import COMMANDS
from riverbed.server.execution.waiters import AT_ONCE
from riverbed.server.protocol.replies import LONG_BYTES, Reply
from riverbed.store.errors import StateLostError
from tests.support.ticks import Client, Ticks, in_loop

CROWD = 200
NOGROUP = b"-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option\r\n"

TRIED: list[bytes] = []  # the names of these commands


@pytest.fixture(autouse=True)
def _note_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note every run of a command that may wait, as when a client that is blocked is tried again."""
    load_commands()
    TRIED.clear()
    for name in (b"XREAD", b"XREADGROUP"):
        monkeypatch.setattr(COMMANDS[name], "handler", _noting(name, COMMANDS[name].handler))


def _noting(name: bytes, handler: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
    def run(request: Request) -> Reply:
        TRIED.append(name)
        return handler(request)

    return run


def tries() -> int:
    """How often a command that may wait has been run."""
    return len(TRIED)


async def crowd(ticks: Ticks, count: int, command: str) -> list[Client]:
    """Clients that wait, each with `command`, where # stands for its number."""
    clients = [ticks.connect() for _ in range(count)]
    for number, client in enumerate(clients):
        client.send(command.replace("#", str(number)))
        await asyncio.sleep(0)
    await ticks.settle()
    return clients


async def pass_ms(ticks: Ticks, ms: int) -> None:
    """Have so much time pass, and what is due then be done."""
    ticks.clock.now_ms += ms
    ticks.executor.blocking.deadline_passed()
    await ticks.settle()


def served(clients: list[Client]) -> list[int]:
    """The numbers of those who have a reply by now."""
    return [number for number, client in enumerate(clients) if client.replies()]


def test_one_entry_for_a_crowd_in_one_group_runs_two_commands(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XGROUP CREATE s g $ MKSTREAM")
        clients = await crowd(ticks, CROWD, "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS s >")
        before = tries()
        await ticks.ask(admin, "XADD s * f v")
        assert served(clients) == [0]
        assert tries() - before == 2
        await ticks.ask(admin, "MULTI", "XADD s * f v", "XADD s * f v", "XADD s * f v", "EXEC")
        assert served(clients) == [1, 2, 3]
        assert tries() - before == 6
        ticks.close()

    in_loop(body())


async def many_streams(ticks: Ticks, admin: Client, options: str) -> list[Client]:
    """Ten consumers that wait for three hundred streams each."""
    keys = [f"k{number}" for number in range(3 * AT_ONCE)]
    await ticks.ask(admin, *(f"XGROUP CREATE {key} g 0 MKSTREAM" for key in keys))
    command = f"XREADGROUP GROUP g c# {options} STREAMS {' '.join(keys)} {' '.join('>' for _ in keys)}"
    clients = await crowd(ticks, 10, command)
    while ticks.executor.waiters.has_work:
        await ticks.settle()
    return clients


def test_one_entry_for_a_crowd_that_waits_for_many_streams_is_looked_for_in_its_own(tmp_path: Path) -> None:
    """All of them read all of the streams for it, and each once more to wait again."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        clients = await many_streams(ticks, admin, "COUNT 1 BLOCK 0")
        before = tries()
        await ticks.ask(admin, "XADD k7 1-1 f v")
        [reply] = clients[0].replies()
        assert b"$2\r\nk7\r\n" in reply and b"1-1" in reply
        assert served(clients) == []
        assert not any(client.session.is_sliced for client in clients)
        assert tries() - before == 2
        await ticks.ask(admin, "MULTI", "XADD k8 1-1 f v", "XADD k299 1-1 f v", "EXEC")
        assert [b"k8" in reply or b"k299" in reply for client in clients[1:3] for reply in client.replies()] == [
            True
        ] * 2
        await ticks.ask(admin, "XGROUP DESTROY k9 g")
        assert all(client.replies()[0].startswith(b"-NOGROUP") for client in clients[3:])
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("command", ["XREAD", "XREADGROUP"])
def test_a_look_at_one_of_many_streams_that_takes_slices_ends_no_wait_for_the_others(
    tmp_path: Path, command: str
) -> None:
    """The reply is too long for memory, and waits for a view; by then another has the entry, or it is gone."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        if command == "XREADGROUP":
            clients = await many_streams(ticks, admin, "COUNT 1 BLOCK 0")
        else:
            keys = [f"k{number}" for number in range(3 * AT_ONCE)]
            await ticks.ask(admin, *(f"XADD {key} 1-1 f v" for key in keys))
            ids = " ".join("1-1" for _ in keys)
            clients = await crowd(ticks, 10, f"XREAD COUNT 1 BLOCK 0 STREAMS {' '.join(keys)} {ids}")
            while ticks.executor.waiters.has_work:
                await ticks.settle()
        admin.send_words("XADD", "k7", "5-1", "f", "v" * (LONG_BYTES + 1))
        if command == "XREAD":
            admin.send("DEL k7")
        for _ in range(50):
            await ticks.settle()
        assert len(served(clients)) == (1 if command == "XREADGROUP" else 0)
        waiting = [client for client in clients if client.session.blocked is not None]
        assert {len(client.session.blocked.keys) for client in waiting if client.session.blocked} == {3 * AT_ONCE}
        while ticks.executor.waiters.has_work:
            await ticks.settle()
        await ticks.ask(admin, "XADD k8 5-1 f v")
        for _ in range(20):
            await ticks.settle()
        assert len(served(waiting)) == (1 if command == "XREADGROUP" else len(waiting))
        ticks.close()

    in_loop(body())


def test_a_stream_that_is_named_twice_is_looked_at_from_both_places(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, client = ticks.connect(), ticks.connect()
        keys = ["k0", *(f"k{number}" for number in range(1, 3 * AT_ONCE)), "k0"]
        await ticks.ask(admin, *(f"XADD {key} 1-1 f v" for key in keys[:-1]))
        ids = " ".join(["100-0", *("1-1" for _ in keys[1:-1]), "2-0"])
        client.send(f"XREAD BLOCK 0 STREAMS {' '.join(keys)} {ids}")
        await ticks.settle()
        while ticks.executor.waiters.has_work:
            await ticks.settle()
        await ticks.ask(admin, "XADD k0 50-0 f v")
        [reply] = client.replies()
        assert b"50-0" in reply
        ticks.close()

    in_loop(body())


def test_a_wake_in_vain_by_one_of_many_streams_forgets_no_claim_of_another(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, other = ticks.connect(), ticks.connect()
        await ticks.ask(admin, "XADD k5 1-1 f v", "XGROUP CREATE k5 g 0")
        await ticks.ask(other, "XREADGROUP GROUP g first STREAMS k5 >")
        clients = await many_streams(ticks, admin, "COUNT 1 BLOCK 0 CLAIM 5000")
        ticks.clock.now_ms += 1000
        # another takes it before they have their turns
        await ticks.ask(admin, "MULTI", "XADD k7 1-1 f v", "XREADGROUP GROUP g other STREAMS k7 >", "EXEC")
        assert served(clients) == []
        await pass_ms(ticks, 4500)  # k5's is due, and k7's is not
        for _ in range(20):
            await ticks.settle()
        assert served(clients) == [0]  # the one that was woken
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    "change",
    ["XGROUP DESTROY s other", "XGROUP CREATE s new $", "XNACK s other FAIL IDS 1 1-1 FORCE", "XADD t * f v"],
)
def test_what_is_not_for_a_crowd_runs_one_command_at_most(tmp_path: Path, change: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XADD s 1-1 f v", "XGROUP CREATE s g $", "XGROUP CREATE s other 0")
        clients = await crowd(ticks, CROWD, "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS s >")
        before = tries()
        await ticks.ask(admin, change)
        assert served(clients) == []
        assert tries() - before <= 1
        ticks.close()

    in_loop(body())


def test_readers_beyond_the_last_entry_are_not_tried_one_by_one(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        patient = await crowd(ticks, CROWD, "XREAD BLOCK 0 STREAMS s 100-0")
        eager = await crowd(ticks, 5, "XREAD BLOCK 0 STREAMS s $")
        before = tries()
        await ticks.ask(admin, "XADD s 1-0 f v")
        assert (served(patient), served(eager)) == ([], [0, 1, 2, 3, 4])
        assert tries() - before == 6
        await ticks.ask(admin, "XADD s 101-0 f v")
        assert served(patient) == list(range(CROWD))
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("end", ["XGROUP DESTROY s g", "DEL s", "RENAME s other", "FLUSHALL", "XTRIM"])
def test_all_of_a_crowd_are_told_when_their_group_goes(tmp_path: Path, end: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XADD s 1-1 f v", "XGROUP CREATE s g $")
        clients = await crowd(ticks, CROWD, "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS s >")
        if end == "XTRIM":
            # nobody is woken by that, nor by a deletion
            await ticks.ask(admin, "XTRIM s MAXLEN 0", "XDEL s 1-1")
            assert served(clients) == []
            await ticks.ask(admin, "DEL s")
        else:
            await ticks.ask(admin, end)
        assert [client.replies() for client in clients] == [[NOGROUP]] * CROWD
        assert len(ticks.executor.waiters) == 0
        ticks.close()

    in_loop(body())


def test_entries_go_by_arrival_whatever_else_those_in_line_ask_for(tmp_path: Path) -> None:
    """COUNT, NOACK, CLAIM with different times and a second key all want the same entries."""
    kinds = [
        "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS s >",
        "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 CLAIM 1000 STREAMS s >",
        "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 NOACK STREAMS s >",
        "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 CLAIM 2000 STREAMS s >",
        "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS t s > >",
    ]

    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE t g $ MKSTREAM")
        clients: list[Client] = []
        for number in (4, 1, 3, 0, 2, 2, 0, 3, 1, 4):
            clients += await crowd(ticks, 1, kinds[number].replace("#", str(len(clients))))
        for number in range(10):
            await ticks.ask(admin, "XADD s * f v")
            assert served(clients) == [number]
        assert len(ticks.executor.waiters) == 0
        ticks.close()

    in_loop(body())


def test_those_who_wait_for_two_streams_are_tried_for_each(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE t g $ MKSTREAM")
        both = await crowd(ticks, 3, "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS s t > >")
        one = await crowd(ticks, 3, "XREADGROUP GROUP g d# COUNT 1 BLOCK 0 STREAMS t >")
        await ticks.ask(admin, "MULTI", "XADD t * f v", "XADD s * f v", "XADD t * f v", "XADD t * f v", "EXEC")
        # the first takes one of each stream, the others what is left of the second
        assert (served(both), served(one)) == ([0, 1, 2], [])
        await ticks.ask(admin, "XADD t * f v")
        assert served(one) == [0]
        ticks.close()

    in_loop(body())


def test_one_that_is_refused_does_not_stop_the_line(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE t g $ MKSTREAM")
        refused = await crowd(ticks, 3, "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS s t > >")
        plain = await crowd(ticks, 3, "XREADGROUP GROUP g d# COUNT 1 BLOCK 0 STREAMS s >")
        await ticks.ask(admin, "MULTI", "XGROUP DESTROY t g", "XADD s * f v", "EXEC")
        assert [client.replies()[0][:8] for client in refused] == [b"-NOGROUP"] * 3
        assert served(plain) == [0]
        ticks.close()

    in_loop(body())


def test_positions_that_are_looked_up_again_are_all_tried(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        readers = await crowd(ticks, 3, "XREAD BLOCK 0 STREAMS s +")
        twice = await crowd(ticks, 3, "XREAD BLOCK 0 STREAMS s s 5-0 $")
        await ticks.ask(admin, "XADD s 1-0 f v")
        assert (served(readers), served(twice)) == ([0, 1, 2], [0, 1, 2])
        ticks.close()

    in_loop(body())


def test_what_becomes_overdue_is_tried_for_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XADD s 1-1 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g gone STREAMS s >")
        clients = await crowd(ticks, CROWD, "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 CLAIM 1000 STREAMS s >")
        before = tries()
        await pass_ms(ticks, 1002)
        assert served(clients) == [0]
        assert tries() - before == 2
        # and they are tried again when that one has been idle for as long
        await pass_ms(ticks, 1002)
        assert served(clients) == [1]
        assert len(ticks.executor.waiters) == CROWD - 2
        ticks.close()

    in_loop(body())


def test_who_leaves_under_way_stops_nobody(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XGROUP CREATE s g $ MKSTREAM")
        clients = await crowd(ticks, 6, "XREADGROUP GROUP g c# COUNT 1 BLOCK 0 STREAMS s >")
        clients[0].leave()
        await ticks.ask(admin, f"CLIENT KILL ID {clients[2].session.id}", "XADD s * f v", "XADD s * f v")
        assert served(clients) == [1, 3]
        # killed in the tick that wakes it: what it was given stays pending
        await ticks.ask(admin, "XADD s * f v", f"CLIENT KILL ID {clients[4].session.id}", "XADD s * f v")
        (pending,) = await ticks.ask(admin, "XPENDING s g - + 10")
        assert [pending.count(b"$2\r\nc%d\r\n" % number) for number in range(6)] == [0, 1, 0, 1, 1, 1]
        assert clients[4].is_closed
        assert served(clients) == [4, 5]
        ticks.close()

    in_loop(body())


def test_a_group_that_goes_is_found_gone_once_and_all_who_wait_for_it_alone_are_told(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        for key in ("s", "t"):
            await ticks.ask(admin, f"XGROUP CREATE {key} g $ MKSTREAM", f"XGROUP CREATE {key} h $")
        alone = await crowd(ticks, CROWD, "XREADGROUP GROUP g c# BLOCK 0 STREAMS s >")
        (both,) = await crowd(ticks, 1, "XREADGROUP GROUP g b BLOCK 0 STREAMS t s > >")
        (other,) = await crowd(ticks, 1, "XREADGROUP GROUP h o BLOCK 0 STREAMS s >")
        late = await crowd(ticks, 3, "XREADGROUP GROUP g l# BLOCK 0 STREAMS s >")
        before, errors = tries(), ticks.executor.stats.error_replies
        await ticks.ask(admin, "XGROUP DESTROY s g")
        for client in (*alone, both, *late):
            assert client.replies() == [NOGROUP]
        assert ticks.executor.stats.error_replies - errors == CROWD + 4
        assert tries() - before <= 4
        assert other.replies() == []
        assert len(ticks.executor.waiters) == 1
        await ticks.ask(admin, "XADD s * f v")
        assert len(other.replies()) == 1
        ticks.close()

    in_loop(body())


def hurried_ticks(directory: Path) -> Ticks:
    """An executor whose turns have time for two clients that wait."""
    ticks = Ticks(directory)
    ticks.executor.blocking.turn_s = -1.0
    ticks.executor.blocking.few = 2
    return ticks


@pytest.mark.parametrize("command", ["XREAD BLOCK 0 STREAMS s $", "XREADGROUP GROUP g c# BLOCK 0 COUNT 1 STREAMS s >"])
def test_a_crowd_is_served_over_several_turns_and_in_order(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        writer, other = ticks.connect(), ticks.connect()
        writer.send("XGROUP CREATE s g 0 MKSTREAM")
        await ticks.settle()
        clients = await crowd(ticks, 9, command)
        writer.send("MULTI", *(f"XADD s {number}-0 f v" for number in range(1, 10)), "EXEC")
        other.send("PING")
        order: list[int] = []
        while len(order) < len(clients):
            await asyncio.sleep(0)
            replies = {number: client.replies() for number, client in enumerate(clients)}
            now = [number for number, those in replies.items() if those]
            assert len(now) <= 2
            assert order or other.replies() == [b"+PONG\r\n"]  # not behind the crowd
            order += now
            if "GROUP" in command:
                assert all(b"$3\r\n%d-0\r\n" % (number + 1) in replies[number][0] for number in now)
        assert order == list(range(9))
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("add", ["XADD s {} f v", "XADD s {} f v|XLEN s", "MULTI|XADD s {} f v|EXEC"])
def test_each_of_a_crowd_gets_one_entry_of_a_pipeline(tmp_path: Path, add: str) -> None:
    """As from Redis, which serves those who wait behind each command, however long that takes."""

    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        writer = ticks.connect()
        writer.send("XGROUP CREATE s g 0 MKSTREAM")
        await ticks.settle()
        clients = await crowd(ticks, 20, "XREADGROUP GROUP g c# BLOCK 0 STREAMS s >")
        lines = [line for number in range(1, 21) for line in add.format(f"{number}-0").split("|")]
        writer.send(*lines)
        for _ in range(4):
            await ticks.settle()
        replies = [client.replies() for client in clients]
        assert [reply.count(b"-0\r\n") for (reply,) in replies] == [1] * 20
        assert all(b"$%d\r\n%d-0\r\n" % (len(f"{n}-0"), n) in reply for n, (reply,) in enumerate(replies, 1))
        assert len(writer.replies()) == 1 + len(lines)
        ticks.close()

    in_loop(body())


def test_a_crowd_whose_time_is_up_is_told_over_several_turns(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        clients = await crowd(ticks, 7, "XREAD BLOCK 10 STREAMS s $")
        ticks.clock.now_ms += 100
        ticks.executor.blocking.deadline_passed()
        await asyncio.sleep(0)
        assert served(clients) == [0, 1]
        await ticks.settle()
        assert served(clients) == [2, 3, 4, 5, 6]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("leaves", ["ends", "closes"])
def test_a_claim_that_becomes_due_is_not_for_one_who_has_left(tmp_path: Path, leaves: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XADD s 1-1 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g dead STREAMS s >")
        gone, stays = await crowd(ticks, 2, "XREADGROUP GROUP g c# BLOCK 0 CLAIM 1000 STREAMS s >")
        if leaves == "ends":  # as a connection does that is forgotten later, see `network/leaving.py`
            gone.session.input.end()
        else:
            gone.session.begin_closing()
        await pass_ms(ticks, 1002)
        assert gone.replies() == []
        assert gone.is_closed
        assert b"$3\r\n1-1\r\n" in stays.replies()[0]
        ticks.close()

    in_loop(body())


def test_a_claim_that_becomes_due_is_run_by_a_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which alone stops a server whose state is lost."""

    def lose(request: Request) -> Reply:
        raise StateLostError("planted")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin = ticks.connect()
        await ticks.ask(admin, "XADD s 1-1 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g dead STREAMS s >")
        await crowd(ticks, 1, "XREADGROUP GROUP g c# BLOCK 0 CLAIM 1000 STREAMS s >")
        monkeypatch.setattr(COMMANDS[b"XREADGROUP"], "handler", lose)
        ticks.clock.now_ms += 1002
        ticks.executor.blocking.deadline_passed()
        assert not ticks.executor.gave_up
        await ticks.settle()
        assert ticks.executor.gave_up
        ticks.close(save=False)

    in_loop(body())


async def deliver_and_trim(ticks: Ticks, client: Client, count: int, *, left: int) -> None:
    """Alice has so many entries pending, in deliveries of 500, of which but the last are deleted."""
    for first in range(1, count, 500):
        await ticks.ask(client, *(f"XADD s {n}-0 f v" for n in range(first, min(first + 500, count + 1))))
    await ticks.ask(client, "XGROUP CREATE s g 0")
    for _ in range(0, count, 500):
        await ticks.ask(client, "XREADGROUP GROUP g Alice COUNT 500 STREAMS s >")
    await ticks.ask(client, f"XTRIM s MAXLEN {left}")


def test_a_claim_where_nothing_is_pending_looks_and_logs_ten_times_a_second(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g $ MKSTREAM")
        TRIED.clear()
        waiting.send("XREADGROUP GROUP g Bob BLOCK 0 CLAIM 0 STREAMS s >")
        for _ in range(250):
            await pass_ms(ticks, 2)
        assert 5 <= tries() <= 6 and waiting.replies() == []
        await ticks.ask(client, "MULTI", "XADD s 1-0 f v", "XREADGROUP GROUP g Alice STREAMS s >", "EXEC")
        assert b"1-0" in waiting.replies()[0]
        ticks.close()

    in_loop(body())


@pytest.mark.slow
def test_a_claim_goes_on_behind_ten_thousand_deleted_entries_and_does_not_turn_for_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting = ticks.connect(), ticks.connect()
        count = 10_100
        await deliver_and_trim(ticks, client, count, left=2)
        TRIED.clear()
        ticks.clock.now_ms += 2000
        waiting.send("XREADGROUP GROUP g Bob BLOCK 0 CLAIM 1000 STREAMS s >")
        await ticks.settle()
        began_ms = ticks.clock.now_ms
        assert tries() == 1 and waiting.replies() == []
        replies: list[bytes] = []
        while not (replies := waiting.replies()):
            await pass_ms(ticks, 100)
            assert ticks.clock.now_ms < began_ms + 3000, "it looks at the same entries again and again"
        assert b"%d-0" % count in replies[0] and b"%d-0" % (count - 1) in replies[0]
        assert tries() <= 5
        ticks.close()

    in_loop(body())


@pytest.mark.slow
def test_a_claim_behind_one_released_and_ten_thousand_deleted_entries_does_not_turn_for_ever(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting = ticks.connect(), ticks.connect()
        await deliver_and_trim(ticks, client, 10_100, left=0)
        assert await ticks.ask(client, "XNACK s g FAIL IDS 1 7-0") == [b":1\r\n"]
        ticks.clock.now_ms += 60_000
        TRIED.clear()
        waiting.send("XREADGROUP GROUP g Bob BLOCK 0 CLAIM 60000 STREAMS s >")
        for _ in range(20):
            await pass_ms(ticks, 2)
        assert waiting.replies() == []
        assert 2 <= tries() <= 5
        ticks.close()

    in_loop(body())


@pytest.mark.slow
def test_a_claim_that_goes_on_far_behind_finds_what_was_released_meanwhile(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting = ticks.connect(), ticks.connect()
        await deliver_and_trim(ticks, client, 10_600, left=1)
        ticks.clock.now_ms += 60_000
        await ticks.ask(client, "XCLAIM s g Alice 0 10600-0 JUSTID", "XREADGROUP GROUP g Bob CLAIM 60000 STREAMS s >")
        await ticks.ask(client, "XNACK s g SILENT IDS 1 10600-0")
        waiting.send("XREADGROUP GROUP g Bob BLOCK 0 CLAIM 60000 STREAMS s >")
        await ticks.settle()
        replies: list[bytes] = []
        for _ in range(10):
            await pass_ms(ticks, 2)
            replies += waiting.replies()
        assert len(replies) == 1 and b"10600-0" in replies[0]
        ticks.close()

    in_loop(body())
