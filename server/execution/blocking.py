"""Wakes blocked clients: runs their reads again when a key changes, and answers them at their deadlines.

The mutator that changes a key notes the change; the executor serves the waiters when the command, or the whole
transaction, is done.  There is one timer, for the earliest deadline, on the monotonic clock: a clock that is set back
lengthens no wait.

A tick has time for a few clients, and for more within `TURN_S`; the others have their turns in the next ticks, in the
same order.  One XADD may wake thousands of readers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.slices import SlicedCommand
from riverbed.server.commands.streams.options import parse_read
from riverbed.server.errors import CommandError
from riverbed.server.execution.waiters import AT_ONCE, Place, Waiters
from riverbed.server.protocol.replies import NULL_ARRAY, Block
from riverbed.store.errors import DamagedRowError
from riverbed.store.model import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.calls import Calls
    from riverbed.server.execution.control.watches import Watches
    from riverbed.server.execution.delivery import Delivery
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.ticks import Turns
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.groups.group import Group
    from riverbed.store.tables.writing.namespace import Namespace

# Changes that wake the clients that wait for a key.  Trims and deletions of entries wake no client.
_WAKING: Final = frozenset(Change) - {Change.MODIFIED}
_NO_GROUP: Final = b"-NOGROUP"
# The time that a tick has for clients that wait, and how many have their turns without a look at the clock.
TURN_S: Final = 0.003
_FEW: Final = 64
# Changes that break a transaction that watches the key.
_BREAKING: Final = frozenset(Change) - {Change.GROUP_REMOVED, Change.RELEASED}


class Blocking:
    """Blocks clients, and runs their commands again when there may be something for them."""

    def __init__(
        self, core: Core, turns: Turns, gate: Gate, calls: Calls, delivery: Delivery, watches: Watches
    ) -> None:
        self._core = core
        self._turns = turns
        self._gate = gate
        self._calls = calls
        self._delivery = delivery
        self._loop = asyncio.get_running_loop()
        self.waiters = Waiters()
        self.waiters.on_work = turns.want_tick
        self.watches = watches
        self.kill: Callable[[Session], None]  # closes a client; set with `Controls`
        self.signals: list[Place] = []  # keys that changed and that a client waits for
        self.few = _FEW
        self.turn_s = TURN_S
        self._unserved: dict[Place, Iterator[Session]] = {}  # keys whose clients have their turns
        # Clients that have begun to wait since the last commit, with their numbers: what they wait for may be undone.
        self._uncommitted: list[tuple[Session, int]] = []
        self._served = 0  # clients of this turn
        self._has_blocked = False  # a client has begun to wait for very many keys in this turn
        self._turn_end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_due = False  # the timer has fired: the next tick looks for those whose moment has come
        self._held: dict[Session, Block] = {}  # to be tried again when no pause holds clients back; how each waits

    def block(self, session: Session, block: Block) -> None:
        """Block the client, with this command."""
        self.waiters.block(session, block, self._core.monotonic_ahead_ms())
        self._uncommitted.append((session, self.waiters.number_of(session)))
        self._arm_deadline()
        if block.has_news is not None:
            self._has_blocked = True

    def notify(self, change: Change, namespace: Namespace, key: bytes) -> None:
        """Note a change, reported by the store, of a key that a client waits for or watches."""
        place = (namespace, key)
        if change in _BREAKING:
            self.watches.changed(place, is_removed=change is Change.REMOVED)
        if change in _WAKING and self.waiters.waits_for(place):
            self.signals.append(place)

    def begin_tick(self) -> None:
        """Serve clients whose moment has come, that had no turn in the last tick, or whose keys have changed since."""
        is_paused = self._gate.is_paused
        if self._held and not is_paused:
            self._let_go_on()
        if self._is_due:
            self._serve_due()
        self._served = 0
        if self._has_blocked:
            self._turns.want_tick()
            self._has_blocked = False  # to block took time enough: the lines are joined from the next tick on
        elif self.waiters.has_work:
            self._join_and_leave()
        if (self.signals or self._unserved) and not is_paused:
            self.serve()

    def _join_and_leave(self) -> None:
        """Go on with clients that begin or cease to wait for very many keys."""
        end = self._core.clock.monotonic() + self.turn_s
        while self.waiters.has_work:
            self.waiters.leave()
            joined = self.waiters.join()
            if joined is not None and self._has_news(*joined):
                self._try_again(joined[0])
            if self._core.clock.monotonic() >= end:
                self._turns.want_tick()
                return

    def _has_news(self, session: Session, start: int, end: int) -> bool:
        """Whether there is something for a client at its keys from one index to another, which it waits for now."""
        assert session.blocked is not None and session.blocked.has_news is not None, "it has joined"
        try:
            return session.blocked.has_news(start, end)
        except (DamagedRowError, lmdb.Error) as error:
            self._calls.failures.met_between_commands(error)
            return True  # the command meets it as well, and is answered

    def _try_again(self, session: Session) -> None:
        """Run the client's command again, now or behind a pause, if it has not left or been answered."""
        if session.blocked is None or self._has_left(session):
            return
        if self._gate.is_paused:
            self._hold(session)
        else:
            self._retry(session, session.blocked)

    def serve(self) -> None:
        """Run the commands of clients that wait for changed keys again, in the order in which the clients came."""
        if self._turns.is_alone:
            return  # no client sees a part of a transaction
        while self.signals or self._unserved:
            if not self._unserved:
                self._unserved = {place: self.waiters.in_turn(place) for place in dict.fromkeys(self.signals)}
                self.signals.clear()
            place, sessions = next(iter(self._unserved.items()))
            if self._is_time_over():
                self._turns.want_tick()
                return
            session = next(sessions, None)
            if session is None:
                del self._unserved[place]
                continue
            block = session.blocked
            assert block is not None, "in a line without waiting"
            if self._has_left(session):
                continue
            is_long = len(block.keys) > AT_ONCE and block.has_news is not None
            reply = self._retry(session, block, place[1] if is_long else None)
            if reply.__class__ is tuple and reply[0].startswith(_NO_GROUP):
                self._tell_those_behind(place, block, reply)

    def _has_left(self, session: Session) -> bool:
        """Whether a client has left, and many others before it; then it is closed, with all that it has sent behind."""
        assert session.blocked is not None
        if session.blocked.is_for_work or not (session.input.has_ended or session.closing):
            return False
        self.kill(session)
        return True

    @property
    def is_behind(self) -> bool:
        """Whether clients of keys that have changed get their turns in the next ticks only.

        What the client that has changed one asks for next has to wait: a consumer would get what is for the others.
        """
        return bool(self._unserved)

    def _is_time_over(self) -> bool:
        """Whether the turn has no time for one more client."""
        self._served += 1
        if self._served == 1:
            self._turn_end = self._core.clock.monotonic() + self.turn_s
        return self._served > self.few and self._core.clock.monotonic() >= self._turn_end

    def serve_soon(self) -> None:
        """As `serve`, between two ticks."""
        if self.signals:
            self._turns.want_tick()  # the tick serves them first

    def _tell_those_behind(self, place: Place, block: Block, reply: tuple[bytes]) -> None:
        """The group is gone: give the same reply to all clients that waited for the same, and for nothing else.

        With a thousand clients this takes 8 us for each, and 30 us if each runs its command.
        """
        error = CommandError(reply[0][1:-2])
        for session in self.waiters.alike(place, block):
            assert session.blocked is not None
            self._calls.wait_over(session, session.blocked, error)
            self.end_wait(session, reply)

    def _retry(self, session: Session, block: Block, key: bytes | None = None) -> Reply:
        """Run a blocked client's command again; -> the reply, a Block when the client waits on.

        Of very many keys only `key`, if it is given: no other has news that was not told of.  Twenty consumers of a
        group that wait for a thousand streams would read all of these for one entry otherwise.
        """
        command, argv = client_command(block.argv), block.argv if key is None else _of_one_key(block, key)
        reply: Reply
        try:
            self._gate.check(command.flags)
        except CommandError as error:
            reply = self._calls.failures.refused(command, error)
            self._calls.account(session, command, block.argv, session.attempts_ns)
        else:
            reply = self._calls.call(session, command, argv)
            if session.blocked is not block:
                return reply  # it failed, its tick could not be committed either, and the client was answered
        if reply.__class__ is Block:
            retry_ms = reply.retry_ms if key is None else block.also_at(reply.retry_ms).retry_ms
            self.waiters.postpone(session, retry_ms, self._core.monotonic_ahead_ms())
            self._arm_deadline()
            return reply
        if reply.__class__ is SlicedCommand:
            reply.wait_end_ms = self.waiters.end_of(session)
            reply.wait = None if key is None else block
        self.end_wait(session, reply)
        return reply

    def committed(self) -> None:
        """What the waits rest on that have begun is in the log."""
        self._uncommitted.clear()

    def undone(self) -> list[Session]:
        """The tick was undone: end the waits that have begun in it, for a key or an ID that may not be there any more.

        -> the clients, which are to be answered.
        """
        ended = []
        for session, number in self._uncommitted:
            block = session.blocked
            if block is None or block.is_for_work or not self.waiters.waits(session, number):
                continue
            if client_command(block.argv).rests_on_tables:
                self._calls.account(session, client_command(block.argv), block.argv, session.attempts_ns)
                self.waiters.release(session)
                ended.append(session)
        self._uncommitted.clear()
        return ended

    def end_wait(self, session: Session, reply: Reply) -> None:
        """Answer a client that waited for a key."""
        self.waiters.release(session)
        self._delivery.deliver(session, reply)
        self._turns.resume(session)

    def end_settled(self, session: Session, reply: Reply) -> None:
        """As `end_wait`, with a reply that no run of its command has made, and no failed commit takes back."""
        if session.blocked is not None:
            self._calls.wait_over(session, session.blocked, reply)
        self.waiters.release(session)
        self._delivery.deliver_settled(session, reply)
        self._turns.resume(session)

    def waiting_consumers(self, group: Group) -> set[bytes]:
        """The names of the group's consumers that wait in an XREADGROUP."""
        names = set()
        for session in self.waiters.waiting_for((group.stream.namespace, group.stream.key)):
            argv = [] if session.blocked is None else session.blocked.argv
            if argv and argv[0].upper() == b"XREADGROUP":
                options = parse_read(argv, 0, with_group=True)
                if options.group == group.name:
                    names.add(options.consumer)
        return names

    def _arm_deadline(self) -> None:
        """Keep one timer, for the earliest deadline."""
        deadline_ms = self.waiters.next_deadline_ms
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        # strictly past the deadline, which is in whole milliseconds: no client waits for less than it asked
        delay = max((deadline_ms + 1) / 1000 - self._core.clock.monotonic(), 0)
        self._timer = self._loop.call_later(delay, self.deadline_passed)

    def deadline_passed(self) -> None:
        """Have the next tick serve the clients whose moment has come: commands run in ticks alone."""
        self._timer = None
        self._is_due = True
        self._turns.want_tick()

    def _hold(self, session: Session) -> None:
        """Have the client be tried again after the pause."""
        assert session.blocked is not None
        self._held[session] = session.blocked

    def _let_go_on(self) -> None:
        """Have clients be tried again whose moment came in a pause, unless they wait for something else by now."""
        end = self._core.clock.monotonic() + self.turn_s
        while self._held:
            session = next(iter(self._held))
            if session.blocked is self._held.pop(session):
                self.waiters.postpone(session, 0)
            if self._core.clock.monotonic() >= end:
                self._turns.want_tick()
                break
        self._is_due = True

    def _serve_due(self) -> None:
        """Answer the clients whose time is up, and run the commands again that are to be tried now."""
        self._is_due = False
        self._served = 0
        now_ms = int(self._core.clock.monotonic() * 1000)
        in_vain: dict[Hashable, int | None] = {}  # topics for which there was nothing, and when to try each again
        try:
            for session in self.waiters.due(now_ms):
                if self._is_time_over():
                    break  # the timer is armed for those that are left
                if self._has_left(session):
                    continue
                block = session.blocked
                assert block is not None
                wish = None if block.topics is None or None in block.topics else (session.db, block.keys, block.topics)
                if self.waiters.is_over(session, now_ms):
                    self.end_settled(session, NULL_ARRAY if block.on_timeout is None else block.on_timeout())
                elif self._gate.is_paused:
                    self.waiters.postpone(session, None)
                    self._hold(session)
                elif wish in in_vain:
                    self.waiters.postpone(session, in_vain[wish], self._core.monotonic_ahead_ms())
                else:
                    self._retry(session, block)
                    if wish is not None and session.blocked is not None:
                        in_vain[wish] = session.blocked.retry_ms
        finally:
            self._arm_deadline()


def _of_one_key(block: Block, key: bytes) -> list[bytes]:
    """The words of a read, which end with its keys and an ID for each, for one key, which may be among them twice."""
    count = len(block.keys)
    before, ids = block.argv[: len(block.argv) - 2 * count], block.argv[len(block.argv) - count :]
    own = [entry_id for name, entry_id in zip(block.keys, ids, strict=True) if name == key]
    return [*before, *[key] * len(own), *own]
