"""Who waits for what: order of arrival, deadlines, and that nobody who leaves leaves anything behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.server.commands.session import Session
from riverbed.server.execution.control.watches import Watches
from riverbed.server.execution.waiters import AT_ONCE, Waiters, add_interest, drop_interest
from riverbed.server.protocol.replies import Block
from tests.support.ticks import Client, Ticks, in_loop

NULL_ARRAY = b"*-1\r\n"


class Room:
    """Waiters and the clients that may wait; a session's database is the first one."""

    def __init__(self, ticks: Ticks, count: int) -> None:
        self.waiters = Waiters()
        self.clients = [ticks.connect() for _ in range(count)]
        self.sessions = [client.session for client in self.clients]
        self.db = ticks.engine.txn.databases[0]

    def block(self, number: int, *keys: bytes, deadline_ms: int | None = None, retry_ms: int | None = None) -> None:
        self.waiters.block(self.sessions[number], Block(keys, deadline_ms, [b"XREAD"], retry_ms))

    def waiting(self, key: bytes) -> list[int]:
        return [self.sessions.index(session) for session in self.waiters.waiting_for((self.db, key))]


def in_room(directory: Path, count: int = 5) -> tuple[Ticks, Room]:
    ticks = Ticks(directory)
    return ticks, Room(ticks, count)


def test_those_who_wait_for_a_key_come_in_order_of_arrival(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path)
        for number in (3, 0, 4, 1):
            room.block(number, b"k", b"other" if number else b"k")
        assert room.waiting(b"k") == [3, 0, 4, 1]
        assert room.waiting(b"other") == [3, 4, 1]
        room.waiters.release(room.sessions[0])
        # who comes again comes last
        room.block(0, b"k")
        assert room.waiting(b"k") == [3, 4, 1, 0]
        assert len(room.waiters) == 4
        assert room.sessions[2] not in room.waiters
        ticks.close()

    in_loop(body())


def test_one_wait_is_for_all_its_keys_and_ends_for_all_of_them(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path)
        room.block(0, b"a", b"b", b"a", b"c")
        assert room.db.interest == {b"a": 1, b"b": 1, b"c": 1}
        room.block(1, b"b")
        assert room.db.interest == {b"a": 1, b"b": 2, b"c": 1}
        room.waiters.release(room.sessions[0])
        assert room.db.interest == {b"b": 1}
        assert not room.waiters.waits_for((room.db, b"a"))
        assert room.waiters.waits_for((room.db, b"b"))
        room.waiters.release(room.sessions[1])
        assert room.db.interest == {}
        assert len(room.waiters) == 0
        assert room.waiters.next_deadline_ms is None
        ticks.close()

    in_loop(body())


def test_databases_are_waited_for_apart(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path)
        other = ticks.engine.txn.databases[7]
        room.sessions[1].db = other
        room.block(0, b"k")
        room.block(1, b"k")
        assert room.waiting(b"k") == [0]
        assert room.waiters.waiting_for((other, b"k")) == [room.sessions[1]]
        assert room.db.interest == other.interest == {b"k": 1}
        ticks.close()

    in_loop(body())


def due(room: Room, now_ms: int) -> list[int]:
    """Whose moment has passed at `now_ms`; they are released."""
    found = []
    for session in room.waiters.due(now_ms):
        found.append(room.sessions.index(session))
        room.waiters.release(session)
    return found


def test_deadlines_are_due_when_they_have_passed_the_earliest_first(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path)
        for number, deadline_ms in enumerate((300, None, 100, 200, 100)):
            room.block(number, b"k", deadline_ms=deadline_ms)
        assert room.waiters.next_deadline_ms == 100
        assert due(room, 100) == []
        assert due(room, 101) == [2, 4]
        assert room.waiters.next_deadline_ms == 200
        assert due(room, 1000) == [3, 0]
        assert room.waiters.next_deadline_ms is None
        assert room.waiting(b"k") == [1]
        ticks.close()

    in_loop(body())


def test_a_moment_to_try_again_counts_like_a_deadline_and_can_be_put_off(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path)
        room.block(0, b"k", deadline_ms=500, retry_ms=100)
        room.block(1, b"k", retry_ms=200)
        assert room.waiters.next_deadline_ms == 100
        room.waiters.postpone(room.sessions[0], 300)
        assert room.waiters.next_deadline_ms == 200
        room.waiters.postpone(room.sessions[1], None)
        assert room.waiters.next_deadline_ms == 300
        room.waiters.postpone(room.sessions[0], 600)
        assert room.waiters.next_deadline_ms == 500
        # both have kept their places
        assert room.waiting(b"k") == [0, 1]
        assert due(room, 501) == [0]
        ticks.close()

    in_loop(body())


def test_the_same_moment_is_a_later_one_when_the_clock_was_set_back(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path)
        room.block(0, b"k", retry_ms=100)
        room.waiters.postpone(room.sessions[0], 100, ahead_ms=4000)
        assert room.waiters.next_deadline_ms == 4100
        room.waiters.release(room.sessions[0])
        assert room.waiters.next_deadline_ms is None
        ticks.close()

    in_loop(body())


def test_a_client_that_claims_is_tried_again_in_time_after_the_clock_was_set_back(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        blocking = ticks.executor.blocking
        writer, reader = ticks.connect(), ticks.connect()
        await ticks.ask(writer, "XADD s 1-0 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g Alice STREAMS s >")
        assert await ticks.ask(reader, "XREADGROUP GROUP g Bob CLAIM 6000 BLOCK 0 STREAMS s >") == []
        ticks.clock.now_ms += 6002
        ticks.clock.set_back_ms = 4000
        blocking.deadline_passed()
        await ticks.settle()
        assert reader.replies() == []  # by the clock the entry is idle for two seconds
        assert blocking.waiters.next_deadline_ms == ticks.clock.now_ms - 1 + 4000
        ticks.clock.now_ms += 4000
        blocking.deadline_passed()
        await ticks.settle()
        assert len(reader.replies()) == 1
        ticks.close()

    in_loop(body())


# -- in an executor ----------------------------------------------------------------------------------------------------


def leftovers(ticks: Ticks) -> list[object]:
    """What waiting and watching has left in the store and in the executor."""
    executor = ticks.executor
    interests = [db.interest for db in executor.txn.databases if db.interest]
    return [*interests, *([len(executor.waiters)] if len(executor.waiters) else [])]


@pytest.mark.parametrize("end", ["leave", "serve", "unblock", "kill", "timeout", "flush"])
def test_no_end_of_a_wait_leaves_anything_behind(tmp_path: Path, end: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        readers = [ticks.connect() for _ in range(10)]
        admin = ticks.connect()
        for number, reader in enumerate(readers):
            await ticks.ask(
                reader, f"SELECT {number % 2}", "WATCH w", f"XREAD BLOCK 1000 STREAMS k own{number} $ $", "PING"
            )
        assert leftovers(ticks) != []
        assert ticks.executor.control.blocked_clients() == 10
        match end:
            case "leave":
                for reader in readers:
                    reader.leave()
            case "serve":
                await ticks.ask(admin, "XADD k 1-1 f v", "SELECT 1", "XADD k 1-1 f v")
            case "unblock":
                await ticks.ask(admin, *[f"CLIENT UNBLOCK {reader.session.id} ERROR" for reader in readers])
            case "kill":
                await ticks.ask(admin, "CLIENT KILL TYPE normal")
            case "timeout":
                ticks.clock.now_ms += 1001
                ticks.executor.blocking.deadline_passed()
                await ticks.settle()
                assert all(reader.replies()[-2:] == [NULL_ARRAY, b"+PONG\r\n"] for reader in readers)
            case "flush":
                await ticks.ask(admin, "FLUSHALL", "SWAPDB 0 1", "FLUSHALL")
                for reader in readers:
                    reader.leave()
        assert ticks.executor.control.blocked_clients() == 0
        for reader in readers:
            if reader.session.id in ticks.executor.context.sessions:
                await ticks.ask(reader, "UNWATCH")
                reader.leave()
        assert leftovers(ticks) == []
        ticks.close()

    in_loop(body())


def test_waiters_are_served_in_order_of_arrival(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        order: list[Client] = []
        clients = [ticks.connect() for _ in range(8)]
        admin = ticks.connect()
        await ticks.ask(admin, "XGROUP CREATE k g $ MKSTREAM")

        def noting(client: Client) -> None:
            receive = client.session.send

            def send(data: bytes) -> None:
                order.append(client)
                receive(data)

            client.session.send = send

        arrival = [clients[number] for number in (4, 1, 7, 0, 3, 6, 2, 5)]
        for number, client in enumerate(arrival):
            noting(client)
            # readers and members of a group in one queue
            words = "XREADGROUP GROUP g c COUNT 1" if number % 2 else "XREAD"
            await ticks.ask(client, f"{words} BLOCK 0 STREAMS k {'>' if number % 2 else '$'}")
        admin.send("MULTI", *(f"XADD k {number}-0 f v" for number in range(1, 5)), "EXEC")
        await ticks.settle()
        assert order == arrival
        # each member of the group got the next entry
        assert [client.replies()[0].count(b"-0\r\n") for client in arrival] == [4, 1] * 4
        ticks.close()

    in_loop(body())


def test_a_wake_up_of_many_is_one_tick_with_its_cause(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        readers = [ticks.connect() for _ in range(50)]
        writer = ticks.connect()
        for reader in readers:
            await ticks.ask(reader, "XREAD BLOCK 0 STREAMS k $")
        sent: list[int] = []
        ticks.files.before_sync = lambda: sent.append(sum(reader.sent for reader in readers))
        await ticks.ask(writer, "XADD k 1-1 f v")
        # nobody is shown the entry before it is durable
        assert sent == [0]
        assert all(len(reader.replies()) == 1 for reader in readers)
        ticks.close()

    in_loop(body())


# -- watches -----------------------------------------------------------------------------------------------------------


def test_a_watch_breaks_when_its_key_changes_and_not_otherwise(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path)
        watches = Watches()
        first, second = room.sessions[0], room.sessions[1]
        for session, key in ((first, b"a"), (first, b"a"), (first, b"b"), (second, b"b")):
            watches.add(session, key)
        assert room.db.interest == {b"a": 1, b"b": 2}
        watches.changed((room.db, b"c"), is_removed=False)
        watches.changed((ticks.engine.txn.databases[1], b"a"), is_removed=False)
        assert not first.transaction.watch_broken
        watches.changed((room.db, b"a"), is_removed=True)
        assert first.transaction.watch_broken
        assert not second.transaction.watch_broken
        watches.clear(first)
        assert not first.transaction.watch_broken
        assert room.db.interest == {b"b": 1}
        watches.clear(second)
        assert room.db.interest == {}
        ticks.close()

    in_loop(body())


def test_a_wait_that_ends_before_the_one_before_it_has_left_all_lines_leaves_nothing_behind(tmp_path: Path) -> None:
    """The first key's line was gone when the first wait came to it: KeyError, and 99 keys stayed waited for."""

    async def body() -> None:
        ticks, room = in_room(tmp_path)
        waiters, [session, *_] = room.waiters, room.sessions
        keys = tuple(b"k%d" % number for number in range(3 * AT_ONCE))
        waiters.block(session, Block(keys, None, [b"XREAD"], topics=(1,) * len(keys), has_news=lambda *_: False))
        while waiters.has_work:
            waiters.join()
        waiters.release(session)
        waiters.block(session, Block(keys[:1], None, [b"XREAD"], topics=(1,)))
        waiters.release(session)
        while waiters.has_work:
            waiters.leave()
        assert (waiters.key_count, room.db.interest) == (0, {})
        ticks.close()

    in_loop(body())


def test_interest_is_counted(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, room = in_room(tmp_path, 1)
        place = (room.db, b"k")
        add_interest(place)
        add_interest(place)
        drop_interest(place)
        assert room.db.interest == {b"k": 1}
        drop_interest(place)
        assert room.db.interest == {}
        ticks.close()

    in_loop(body())


def test_a_session_waits_with_one_command(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        session: Session = client.session
        await ticks.ask(client, "XREAD BLOCK 0 STREAMS k $", "XREAD BLOCK 0 STREAMS l $")
        assert session.blocked is not None
        # the position is remembered, not the `$`
        assert session.blocked.argv[-1] == b"0-0"
        assert session.blocked.keys == (b"k",)
        assert [len(session.backlog), session.must_wait, session.is_plain] == [1, True, False]
        ticks.close()

    in_loop(body())
