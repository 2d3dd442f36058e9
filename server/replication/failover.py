"""FAILOVER: a primary hands its role over to one of its replicas, and nothing is lost.

    NONE --FAILOVER--> WAITING --a replica has everything--> HANDING_OVER --it goes on with us--> NONE, and we follow it
                          |                                       |
                          '-- ABORT, or too late --> NONE <-------'-- ABORT, or it refuses, and we are the primary again

Writes wait from the first step on, so that the replica can come level.  The replica becomes the primary when we, its
primary, ask it for the log with `PSYNC id offset FAILOVER`; then the writes that waited are refused, as by any replica.
When the link breaks behind this request we do not know whether the replica has got it.  Only one refusal ends the wait
then, that of a replica of ours which lacks something: it is no primary.  A replica that cannot take over because it is
one has done so, and is followed if it has all that is here.  ABORT ends it, and may leave two primaries, as with Redis.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.server.errors import CommandError
from riverbed.server.execution.control.pauses import Hold
from riverbed.server.replication import sender

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.execution.control.pauses import Pauses
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.replication.primary import Primary
    from riverbed.server.replication.sender import Sender

log = logging.getLogger("riverbed")

ALREADY: Final = "ERR FAILOVER already in progress."
NOT_ONGOING: Final = "ERR No failover in progress."
ON_REPLICA: Final = "ERR FAILOVER is not valid when server is a replica."
FORCE_NEEDS_MORE: Final = "ERR FAILOVER with force option requires both a timeout and target HOST and IP."
NO_REPLICAS: Final = "ERR FAILOVER requires connected replicas."
NOT_A_REPLICA: Final = "ERR FAILOVER target HOST and PORT is not a replica."
NOT_ONLINE: Final = "ERR FAILOVER target replica is not online."
NO_REPLICA_TO_TAKE_OVER: Final = "ERR PSYNC FAILOVER can't be sent to a master."
LACKS_LOG: Final = "ERR PSYNC FAILOVER offset is beyond the log here: nothing is given up without FORCE"
FOREIGN: Final = "ERR FAILOVER requires a replica that is a Riverbed: a Redis could not be followed"
# The longest time that a timer takes.
_MAX_S: Final = 365 * 86_400

Place = tuple[str, int]


class State(enum.Enum):
    """States of a failover, in the words of INFO."""

    NONE = "no-failover"
    WAITING = "waiting-for-sync"
    HANDING_OVER = "failover-in-progress"


class Failover:
    """The failovers of one server, one at a time.  `follow` makes it a replica, `promote` a primary again."""

    def __init__(
        self,
        core: Core,
        ticks: Ticks,
        pauses: Pauses,
        primary: Primary,
        follow: Callable[[str, int], None],
        promote: Callable[[], None],
    ) -> None:
        self.state = State.NONE
        self._engine = core.engine
        self._txn = core.txn
        self._ticks = ticks
        self._pauses = pauses
        self._primary = primary
        self._follow = follow
        self._promote = promote
        self._loop = asyncio.get_running_loop()
        self._target: Place | None = None
        self._is_forced = False
        self.gives_up_rest = False  # the replica was late, and what it lacks is given up as FORCE says
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_under_way(self) -> bool:
        return self.state is not State.NONE

    # -- what commands do ----------------------------------------------------------------------------------------------

    def begin(self, target: Place | None, timeout_ms: int | None, *, force: bool) -> None:
        """Hand over to `target`, or to the replica that is level first.  Raises CommandError when it cannot."""
        if self.is_under_way:
            raise CommandError(ALREADY)
        if self._txn.follows:
            raise CommandError(ON_REPLICA)
        if not self._primary.senders:
            raise CommandError(NO_REPLICAS)
        if force and (target is None or timeout_ms is None):
            raise CommandError(FORCE_NEEDS_MORE)
        self._check(target)
        self._target, self._is_forced, self.gives_up_rest = target, force, False
        self.state = State.WAITING
        log.info("failover to %s: writes wait until it has everything", _named(target))
        self._pauses.hold_writes(Hold.FAILOVER)
        if timeout_ms is not None:
            self._timer = self._loop.call_later(min(timeout_ms / 1000, _MAX_S), self._is_late)
        self.look_soon()

    def _check(self, target: Place | None) -> None:
        """Raise CommandError when the target cannot take over."""
        if target is None:
            if not any(replica.introduction.is_ours for replica in self._primary.senders.values()):
                raise CommandError(FOREIGN)
            return
        replica = self._find(target)
        if replica is None:
            raise CommandError(NOT_A_REPLICA)
        if replica.state is not sender.State.ONLINE:
            raise CommandError(NOT_ONLINE)
        if not replica.introduction.is_ours:
            raise CommandError(FOREIGN)

    def abort(self) -> None:
        """FAILOVER ABORT.  Raises CommandError when no failover is under way."""
        if not self.is_under_way:
            raise CommandError(NOT_ONGOING)
        self._give_up("aborted by hand")

    # -- waiting -------------------------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        """Check behind the tick under way whether a replica has come level."""
        if self.state is State.WAITING:
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self.state is not State.WAITING:
            return
        if self._txn.log:
            self._ticks.want_tick()
            self.look_soon()
            return
        end = self._engine.log.end.offset
        replicas = self._primary.senders.values() if self._target is None else [self._find(self._target)]
        for replica in replicas:
            if replica is not None and replica.introduction.is_ours and replica.acked_offset == end:
                self._hand_over(replica.place)
                return

    def _find(self, place: Place) -> Sender | None:
        """The replica that announces this host and port; of its links that which lives, if another died unnoticed."""
        host, port = place
        links = [link for link in self._primary.senders.values() if link.place == (host.lower(), port)]
        return max(links, key=lambda link: (link.state is sender.State.ONLINE, link.acked_offset), default=None)

    def _is_late(self) -> None:
        if self.state is State.WAITING:
            if self._is_forced and self._target is not None:
                self.gives_up_rest = True
                self._hand_over(self._target)
            else:
                self._give_up("no replica had everything in time")

    # -- handing over --------------------------------------------------------------------------------------------------

    def _hand_over(self, target: Place) -> None:
        self._target = target
        self.state = State.HANDING_OVER
        log.info("failover to %s: it takes over at offset %d", _named(target), self._engine.log.end.offset)
        self._follow(*target)

    def taken_over(self) -> None:
        """The replica has accepted us as its replica: it is the primary."""
        if self.is_under_way:
            log.info("failover to %s: done", _named(self._target))
            self._end()

    def refused(self, error: Exception) -> None:
        """The replica answers, but does not take over."""
        self._give_up(str(error))

    # -- the end -------------------------------------------------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        log.warning("failover to %s: given up: %s", _named(self._target), reason)
        if self.state is State.HANDING_OVER:
            self._promote()
        self._end()

    def _end(self) -> None:
        self.state = State.NONE
        self._target = None
        self.stop()
        self._pauses.release_writes(Hold.FAILOVER)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _named(target: Place | None) -> str:
    return "any replica" if target is None else f"{target[0]}:{target[1]}"
