"""Applies the batches that the primary streams, a slice at a time: clients and checkpoints have their turns between.

Batches are verified, executed and appended to our log as one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import lmdb

from riverbed.server.replication.worker import NO_ROOM
from riverbed.store.errors import (
    DISK_LACKS_ROOM,
    TABLE_DAMAGE,
    LacksRoomError,
    LogWriteError,
    ReplayError,
    StateLostError,
)
from riverbed.store.format.log_lines import FrameError

if TYPE_CHECKING:
    from riverbed.server.replication.needs import Needs
    from riverbed.store.engine import Engine
    from riverbed.store.log.streamed.stream import LogStream

# At most so much is applied before it is the clients' turn, unless one batch is larger.  A small command takes 4 us or
# more, so a bound of bytes alone would allow 30 ms of them; XADDs of a run take 0.3 us, and a run counts as one.  Of a
# long batch, as many commands are parsed at once.
SLICE_BYTES: Final = 256 << 10
SLICE_COMMANDS: Final = 512
SLICE_S: Final = 0.004
# Time between two looks whether the disk has caught up.
DISK_AGAIN_S: Final = 0.005
# Nothing is read from the primary while so much of what it sent is not applied yet.
MAX_PENDING_BYTES: Final = 4 << 20
LACKS_ROOM: Final = "the disk is nearly full here: nothing is taken from the primary until there is more room"
LACKS_CHECKPOINT: Final = (
    "the tables here could not take what the log has, see the server's log: nothing more is taken from the primary "
    "until they do"
)
LACKS_MEMORY: Final = "there is too little memory here for what the primary sends"


def why_nothing_is_taken(engine: Engine, *, takes_all: bool = False) -> str:
    """The reason why no more of a primary's log is taken for now; empty if it is.

    A full sync, which `takes_all`, brings other tables.
    """
    if engine.refusal in DISK_LACKS_ROOM:
        return LACKS_ROOM
    return LACKS_CHECKPOINT if engine.lacks_checkpoint and not takes_all else ""


class NotNowError(Exception):
    """Nothing is taken from the primary for now; the text says why."""


class ApplierUser(Protocol):
    """The owner of an applier, called when something has become of what came."""

    def applied(self) -> None:
        """Batches are in our log."""

    def acknowledge(self) -> None:
        """A slice was applied: the primary may be told how far we are."""

    def set_reading(self, on: bool) -> None:
        """Read from the primary, or let it wait."""

    def damaged(self, error: Exception) -> None:
        """Damaged bytes came."""

    def does_not_fit(self, error: ReplayError) -> None:
        """Sound bytes came that our state does not fit."""

    def met_damage(self, error: Exception) -> None:
        """Our tables are damaged where a command of the primary reads them."""

    def refuse(self, reason: str) -> None:
        """Nothing more can be applied for now."""


class Applier:
    """Applies what comes of one `stream`, until it is closed."""

    def __init__(self, needs: Needs, stream: LogStream, user: ApplierUser) -> None:
        self.stream = stream
        self.waited_s = 0.0  # when something that has come had to wait last
        self._needs = needs
        self._engine = needs.core.engine
        self._monotonic = needs.core.clock.monotonic
        self._user = user
        self._is_due = False
        self._is_closed = False

    def received(self, data: bytes) -> None:
        """Take bytes of the stream.  Raises OSError."""
        self.stream.feed(data)
        self.work_soon()

    def close(self) -> None:
        self._is_closed = True
        self.stream.close()

    def work_soon(self, delay_s: float = 0.0) -> None:
        """Apply a slice of what has come, in a turn of its own."""
        if not self._is_due:
            failed = self._user.damaged
            self._needs.tasks.soon("applying what the primary sends", self._work, failed=failed, delay_s=delay_s)
            self._is_due = True

    def _work(self) -> None:
        self._is_due = False
        if self._is_closed:
            return
        if self._engine.txn.log:
            self._needs.ticks.want_tick()  # commands of the tick in which we became a replica
            self.work_soon()
            return
        if self._has_to_wait:
            self.waited_s = self._monotonic()
            self.work_soon(DISK_AGAIN_S if self._needs.is_disk_behind() else 0.0)
            self._read_on()
            return
        user = self._user
        try:
            self._apply_slice()
        except FrameError as error:
            user.damaged(error)
        except NotNowError as error:
            user.refuse(str(error))
        except LacksRoomError:
            user.refuse(LACKS_ROOM)
        except MemoryError:
            user.refuse(LACKS_MEMORY)
        except TABLE_DAMAGE as error:
            user.met_damage(error)
        except ReplayError as error:
            user.does_not_fit(error)
        except (LogWriteError, lmdb.Error) as error:
            reason = NO_ROOM if isinstance(error, lmdb.MapFullError) else str(error)
            user.refuse(f"the primary's bytes cannot be written: {reason}")
        except StateLostError as error:
            self._needs.ticks.give_up(error)
        except OSError as error:
            user.refuse(f"a long batch of the primary cannot be held: {error}")
        else:
            self._read_on()
            user.acknowledge()

    def _apply_slice(self) -> None:
        end_s = self._monotonic() + SLICE_S
        while True:
            batches = self.stream.next_slice(SLICE_BYTES, SLICE_COMMANDS)
            if batches:
                try:
                    if reason := why_nothing_is_taken(self._engine):
                        raise NotNowError(reason)
                    self._engine.apply(batches)
                    self._user.applied()
                finally:
                    batches[-1].release()
            elif not self.stream.is_unfinished:
                return
            if self._monotonic() >= end_s or self._has_to_wait:
                self.work_soon()
                return

    @property
    def _has_to_wait(self) -> bool:
        """Whether a checkpoint comes before what the primary sends."""
        return self._needs.is_writing_ahead() or self._needs.is_disk_behind()

    def _read_on(self) -> None:
        """Read from the primary, unless much of what it sent is to be applied first."""
        self._user.set_reading(not self._is_due or self.stream.pending_bytes < MAX_PENDING_BYTES)
