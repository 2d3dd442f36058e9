"""When a replica connects to its primary again, and what went wrong before.

A link that was lost is tried again at once, as the primary's log moves on; one that could not be made, or was lost as
soon as it was, after a moment; after a refusal that lasts, later.  A full sync that failed here waits longer each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from riverbed.server.replication.link import LinkError

if TYPE_CHECKING:
    from riverbed.store.options import Clock

RETRY_S: Final = 1.0
# After a refusal that lasts we ask again after so long: another server may listen there by then.
LASTING_RETRY_S: Final = 10.0
# A full sync that this machine could not finish is begun again after so long, twice as long each time.
SYNC_RETRY_S: Final = 1.0
_MAX_DOUBLINGS: Final = 4  # to more than LASTING_RETRY_S
# After so many damaged batches in a row, without a sound one in between, the link is not the cause.
MAX_DAMAGES: Final = 5


class Attempts:
    """The attempts of one follower; `reason` says why the link is down, and is empty while it is up."""

    def __init__(self, clock: Clock) -> None:
        self.reason = "not connected yet"
        self._clock = clock
        self._damages = 0  # in a row
        self.failed_syncs = 0  # in a row, of those that this machine could not finish
        self._sync_failure = ""
        self._down_since_s = clock.monotonic()
        self._connected_s = 0.0
        self._next_s = 0.0

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._next_s

    def connected(self) -> None:
        self.reason = ""
        self._connected_s = self._clock.monotonic()
        self.failed_syncs = 0
        self._sync_failure = ""

    def went_down(self) -> None:
        self._down_since_s = self._clock.monotonic()

    def failed(self, error: LinkError, *, was_connected: bool) -> bool:
        """Note why there is no link, and wait; -> whether that is another reason than before."""
        is_news = str(error) != self.reason
        self.reason = str(error)
        has_lasted = was_connected and self._clock.monotonic() - self._connected_s >= RETRY_S
        delay_s = LASTING_RETRY_S if error.is_lasting else 0.0 if has_lasted else RETRY_S / 2
        if self.failed_syncs:
            doublings = min(self.failed_syncs - 1, _MAX_DOUBLINGS)
            delay_s = max(delay_s, min(SYNC_RETRY_S * 2**doublings, LASTING_RETRY_S))
        self._next_s = self._clock.monotonic() + delay_s
        return is_news

    def sync_failed(self, error: Exception) -> None:
        self.failed_syncs += 1
        self._sync_failure = " ".join(str(error).split())

    def was_sound(self) -> None:
        """Note that a batch was whole."""
        self._damages = 0

    def was_damaged(self) -> bool:
        """Note a damaged batch; -> whether there were so many in a row that all must be sent again."""
        self._damages += 1
        if self._damages < MAX_DAMAGES:
            return False
        self._damages = 0
        return True

    def fields(self, *, is_syncing: bool) -> Iterator[tuple[str, object]]:
        """What INFO reports while there is no link, or no more than a full sync on it."""
        yield "master_link_down_since_seconds", int(self._clock.monotonic() - self._down_since_s)
        yield "riverbed_master_link_reason", "a full sync is under way" if is_syncing else self.reason
        yield "riverbed_full_sync_failures", self.failed_syncs
        yield "riverbed_full_sync_last_failure", self._sync_failure
