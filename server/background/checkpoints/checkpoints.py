"""When the tables are checkpointed: a while after a commit, at once when much was logged, or when a client asks for it.

A checkpoint begins in one turn of the loop; a thread makes it durable while clients are served.  When the disk is too
slow for what is written, writes wait for it, and all else goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.background.checkpoints.disk_hold import DiskHold
from riverbed.server.background.checkpoints.rows_ahead import RowsAhead
from riverbed.server.background.tasks import start_all
from riverbed.server.errors import CommandError, require_sound_disk
from riverbed.server.limits.rare_lines import RareLine
from riverbed.store.errors import TABLE_DAMAGE, DamagedRowError, LogWriteError, StateLostError, StoreError

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.execution.control.pauses import Pauses
    from riverbed.server.execution.failures import Failures
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.sliced_commands import SlicedCommands
    from riverbed.server.execution.ticks import Ticks
    from riverbed.store.position import LogPosition
    from riverbed.store.running.checkpoint import Durability

log = logging.getLogger("riverbed")

RETRY_S: Final = 1.0
EVERYSEC_S: Final = 1.0
# A checkpoint is due when this much was logged since the last, whatever the interval.  It writes the row of each stream
# that has changed; if these are many it waits for a few times as much, or the rows would cost more than the entries.
CHECKPOINT_BYTES: Final = 1 << 20
STREAMS_A_CHECKPOINT: Final = 256
_MAX_TIMES: Final = 4
# The errors with which a checkpoint fails, and is tried again.
_FAILURES: Final = (DamagedRowError, LogWriteError, lmdb.Error)
# A replica waits for so many times as much: it applies nothing while it puts rows into the tables, and the commit finds
# none that it has to write itself.  With a thousand streams it needs a ninth less time so.
REPLICA_TIMES: Final = 2
# So many times CHECKPOINT_BYTES may wait in memory for a slow disk; then writes wait for it, too.
MAX_DIRTY: Final = 32
# Streams and groups may get other numbers when the state is made again.
COMMANDS_UNDER_WAY: Final = "ERR commands in slices are under way, which would not find their streams again; try later"


class Checkpoints:
    """The checkpoints of one server."""

    def __init__(
        self,
        core: Core,
        ticks: Ticks,
        tasks: Tasks,
        gate: Gate,
        *,
        pauses: Pauses,
        failures: Failures,
        sliced_commands: SlicedCommands,
    ) -> None:
        self.on_durable: list[Callable[[], None]] = []  # called when the log is durable up to its end
        self._config = core.config
        self._engine = core.engine
        self._stats = core.stats
        self._ticks = ticks
        self._tasks = tasks
        self._gate = gate
        self._hold = DiskHold(core.stats, pauses, core.clock.monotonic)
        self._rows_ahead = RowsAhead(core.engine)
        self._failures = failures
        self._sliced_commands = sliced_commands
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._again_s = 0.0  # when the one that has failed is tried again, in the loop's time
        self._failed: dict[tuple[str, type[Exception]], RareLine] = {}  # a disk may be full for hours
        self._is_due = False  # the next one, as soon as it may begin
        self._beginning = asyncio.Lock()  # held by the task that is about to begin the next one
        self._are_kept_off = False  # none begins because of what is logged, or of a timer
        self._syncing: asyncio.Task[None] | None = None  # the disk has not got this one yet
        self._durability: Durability | None = None  # of the one that a thread was given last
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        for name in ("appendfsync", "checkpoint-interval-ms"):
            self._config.observe(name, self._follow_config)

    def start_thread(self) -> None:
        """Start the disk's thread now, see `start_all`."""
        start_all(self._disk, 1)

    def stop(self) -> None:
        """Begin no other checkpoint."""
        self._is_due = False
        self._disarm()

    def close(self) -> None:
        """End the disk's thread: no task needs it any more, not even one that has just been started."""
        self._disk.shutdown(wait=False)

    @property
    def is_writing_ahead(self) -> bool:
        """Whether rows are being put into the tables in turns, before the checkpoint that commits them."""
        return self._rows_ahead.is_under_way

    @property
    def is_disk_behind(self) -> bool:
        """Whether so much waits for the disk that writes wait, too."""
        return self._hold.is_on

    def committed(self) -> None:
        """Have what was committed in a checkpoint soon, at once if it is much; clients of a tick have their replies."""
        engine = self._engine
        if engine.txn.overfull and engine.checkpoints.last_ok:  # else there may be no space for a row
            with self._retrying("writing rows"):
                engine.write_behind()
        if self._rows_ahead.is_under_way:
            with self._retrying():
                self._rows_ahead.keep_pace()
        elif engine.checkpoints.last_ok and (engine.log.is_full or self._is_worth_it()):  # else it is tried again
            self._checkpoint()
            return
        if self._timer is None:
            self.arm()

    def _is_worth_it(self) -> bool:
        """Whether enough was logged for the number of streams that have changed."""
        if self._engine.dirty_bytes < CHECKPOINT_BYTES:
            return False
        times = min(1 + self._engine.txn.changed_streams // STREAMS_A_CHECKPOINT, _MAX_TIMES)
        if self._engine.txn.follows:
            times *= REPLICA_TIMES
        return self._engine.dirty_bytes >= times * CHECKPOINT_BYTES

    def arm(self) -> None:
        """Have a checkpoint soon."""
        if self._timer is not None:
            return
        if not self._engine.checkpoints.last_ok:
            self._try_again()
            return
        config = self._config
        delay = config.checkpoint_interval_ms / 1000
        if config.appendfsync == "everysec":
            delay = min(delay, EVERYSEC_S)  # the checkpoint syncs the log then
        self._timer = self._loop.call_later(delay, self._checkpoint)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rows_ahead.end()

    def _follow_config(self) -> None:
        """A checkpoint that is due may be due earlier now."""
        if self._timer is not None:
            self._disarm()
            self.arm()

    def checkpoint(self) -> None:
        """As `checkpoint_now`, for a client.  Raises CommandError."""
        require_sound_disk(self._engine.refusal, "checkpoint")
        try:
            self.checkpoint_now()
        except _FAILURES as error:
            raise CommandError(f"ERR the checkpoint failed: {error}") from None

    def reload(self, *, from_log: bool) -> None:
        """Checkpoint, then read the state again, or make it of the whole log.  Raises CommandError."""
        if from_log and self._sliced_commands.are_among_streams:
            raise CommandError(COMMANDS_UNDER_WAY)
        self.checkpoint()
        try:
            self._engine.reload(from_log=from_log)
        except (OSError, lmdb.Error, StoreError) as error:
            raise CommandError(f"ERR the state could not be loaded again, and is as before: {error}") from None

    def checkpoint_now(self) -> None:
        """Commit what has run so far, and checkpoint, durably.  Raises as `checkpoint_in_thread`."""
        self._begin_checkpoint()
        self._end_checkpoint()

    async def checkpoint_in_thread(self) -> None:
        """As `checkpoint_now`, but clients are served while the disk works.

        Raises DamagedRowError, LogWriteError, lmdb.Error, StateLostError.
        """
        if self._syncing is not None:
            self._is_due = True  # what has run is in the next one, which begins at the end of this one
            await asyncio.wait([self._syncing])
        async with self._beginning:  # of several tasks that want one, the first makes it for all
            if self._syncing is None:
                await self.write_ahead()
            if self._syncing is None:
                self._begin_in_thread()
        durability = self._durability
        assert self._syncing is not None
        assert durability is not None
        await asyncio.wait([self._syncing])
        durability.require()

    async def write_ahead(self) -> None:
        """Put rows into the tables in turns, until a checkpoint that begins now has few to write.

        Raises DamagedRowError, lmdb.Error.
        """
        with self._failing():
            await self._rows_ahead.take_all()

    def _begin_in_thread(self) -> None:
        """Begin a checkpoint, which a thread makes durable.  Raises what `_begin_checkpoint` raises."""
        try:
            self._begin_checkpoint()
        finally:
            durability = self._engine.checkpoints.syncing
            if durability is not None:  # else it has not begun; it may have when something is raised behind that
                self._hand_over(durability)
        self._sliced_commands.rest()

    def _hand_over(self, durability: Durability) -> None:
        """Have a thread make a checkpoint durable."""
        self._durability = durability
        self._syncing = self._tasks.in_thread("making a checkpoint durable", durability.run, executor=self._disk)
        self._syncing.add_done_callback(lambda task: self._synced(task, durability))

    def _hand_over_again(self) -> None:
        """Have a thread end the checkpoint that memory was too short to end, if there is one."""
        durability = self._engine.checkpoints.syncing
        if durability is not None and self._syncing is None:
            self._hand_over(durability)

    @contextlib.asynccontextmanager
    async def kept_off(self) -> AsyncIterator[None]:
        """Wait until the disk has the checkpoint under way; inside, none begins but that of a SAVE."""
        async with self._beginning:
            self._are_kept_off = True
            try:
                while self._syncing is not None:
                    await asyncio.wait([self._syncing])
                yield
            finally:
                self._are_kept_off = False
                self._go_on()

    def divide_log(self) -> LogPosition:
        """As `Engine.divide_log`, between ticks; a thread makes the checkpoint durable.

        Best in `kept_off`, or it may wait for the disk, and behind `write_ahead`.
        """
        try:
            with self._failing():
                return self._engine.divide_log()
        finally:
            durability = self._engine.checkpoints.syncing
            if durability is not None:
                self._caught_up()
                self._hand_over(durability)

    async def wait_for_disk(self) -> None:
        """Wait until the disk has the checkpoint that is under way now, for a turn of the loop if there is none.

        One that memory was too short to end is tried again, also where no other begins any more.
        """
        if self._syncing is None:
            await asyncio.sleep(RETRY_S if self._engine.checkpoints.is_syncing else 0)
            self._hand_over_again()
        if self._syncing is not None:
            await asyncio.wait([self._syncing])

    async def in_disk_thread(self, what: str, run: Callable[[], None]) -> None:
        """Have the thread that makes checkpoints durable `run` this as well, behind them.  Raises what `run` raises."""
        await self._tasks.in_thread(what, run, executor=self._disk)

    def _begin_checkpoint(self) -> Durability:
        """Begin a checkpoint of all that has run.

        Raises DamagedRowError, LogWriteError, lmdb.Error, and has it tried again later then; StateLostError.
        """
        self._disarm()
        with self._failing():
            self._failures.commit_early()
            durability = self._engine.begin_checkpoint()
        self._caught_up()
        self._stats.expired_keys += self._engine.txn.expired_keys
        self._engine.txn.expired_keys = 0
        return durability

    def _end_checkpoint(self) -> None:
        self._engine.end_checkpoint()
        self._tell_durable()

    def _tell_durable(self) -> None:
        for report in self.on_durable:
            report()

    def _checkpoint(self) -> None:
        """Begin a checkpoint, which a thread makes durable while clients are served.

        If the disk is still busy with the one before, the next begins after that; once too much is waiting, writes wait
        as well.  Many rows are put into the tables first, in turns; what changes meanwhile is all that is left to it.
        """
        self._disarm()
        if self._has_to_wait:
            self._is_due = True
            self._hand_over_again()
            if self._engine.dirty_bytes >= MAX_DIRTY * CHECKPOINT_BYTES:
                self._hold.begin()
            return
        self._is_due = False
        if self._rows_ahead.begin():
            self._timer = self._loop.call_later(0, self._take_turn)
            return
        with self._retrying():
            self._begin_in_thread()

    def _take_turn(self) -> None:
        """Put some rows into the tables; begin the checkpoint when few are left to it."""
        self._timer = None
        if self._has_to_wait:
            self._checkpoint()  # later
            return
        goes_on = False
        try:
            with self._retrying():
                goes_on = not self._rows_ahead.take_turn()
                if not goes_on:
                    self._begin_in_thread()
        finally:
            if not goes_on:
                self._rows_ahead.end()  # also after a defect: a replica waits for as long as rows are written
        if goes_on:
            self._timer = self._loop.call_later(0, self._take_turn)
        else:
            self._sliced_commands.look_for_views()

    def checkpoint_later(self) -> None:
        """Begin a checkpoint behind the tick under way."""
        self._disarm()
        self._timer = self._loop.call_later(0, self._checkpoint)

    def checkpoint_soon(self) -> bool:
        """Begin a checkpoint, or have one begin soon; -> whether it was tried now."""
        if self._has_to_wait:
            self._is_due = True
        elif not self._rows_ahead.is_under_way:
            self._checkpoint()
            return not self._rows_ahead.is_under_way
        else:
            self.arm()  # in case the task that is writing ahead begins none
        return False

    @property
    def _has_to_wait(self) -> bool:
        """Whether the next one may not begin yet."""
        return self._engine.checkpoints.is_syncing or self._are_kept_off

    def _caught_up(self) -> None:
        """A checkpoint of all that is logged has begun: no other is due, and writes wait no longer."""
        self._is_due = False
        self._hold.end()

    def _synced(self, task: asyncio.Task[None], durability: Durability) -> None:
        """End the checkpoint that is on the disk now, unless a caller that could not wait has ended it."""
        if self._syncing is task:
            self._syncing = None
        if task.cancelled():
            return
        try:
            with self._retrying():
                if self._engine.checkpoints.syncing is durability:
                    self._engine.end_checkpoint()
                self._tell_durable()
        finally:
            self._go_on()  # also after a defect, or writes would wait for ever

    def _go_on(self) -> None:
        """Begin the checkpoint that is due, if it may begin; then writes wait no longer."""
        try:
            if self._is_due and not self._engine.checkpoints.is_syncing:  # else one could not be ended: the timer comes
                self._checkpoint()
        finally:
            if not self._is_due:
                self._hold.end()
            self._sliced_commands.look_for_views()

    @contextlib.contextmanager
    def _retrying(self, what: str = "checkpoint") -> Iterator[None]:
        try:
            yield
        except StateLostError as error:
            self._ticks.give_up(error)
        except _FAILURES as error:
            self._tell(what, error)
            if isinstance(error, TABLE_DAMAGE) or self._wants_other_tables:
                self._failures.damage_met()
            self._put_off()
        except Exception as error:
            log.error("%s failed, to be tried again", what, exc_info=error)
            self._put_off()

    def _tell(self, what: str, error: Exception) -> None:
        text = f"{what} failed, to be tried again (%d since the last such line): %s"
        self._failed.setdefault((what, type(error)), RareLine(text)).note(str(error), self._loop.time())

    @property
    def _wants_other_tables(self) -> bool:
        """Whether the tables take nothing any more, and the log goes on: a primary does not wait for its replicas."""
        return self._engine.tables.failure is not None and self._engine.txn.follows

    def _put_off(self) -> None:
        self._try_again()
        self.sync_log()
        self._gate.refresh()

    def sync_log(self) -> None:
        """Make the log durable, as a checkpoint would have that damage, or a full disk, is in the way of.

        The loop waits for the disk: that is once in RETRY_S.
        """
        with contextlib.suppress(LogWriteError):  # writes are refused then
            self._engine.keeper.sync()
            self._tell_durable()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Have what fails inside tried again, and let the caller know."""
        try:
            yield
        except Exception:
            self._try_again()
            raise

    def _try_again(self) -> None:
        """Have a checkpoint in a while, if none comes sooner.

        A client that has one fail more often than this must not put it off: with it the log is synced.
        """
        now_s = self._loop.time()
        if self._again_s <= now_s:
            self._again_s = now_s + RETRY_S
        if self._timer is None or self._timer.when() > self._again_s:
            self._disarm()
            self._timer = self._loop.call_at(self._again_s, self._checkpoint)
