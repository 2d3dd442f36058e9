"""Where logs branch off: which of the answers that servers gave must still hold in the end.

    R1 ------------------o-----> lost: a primary that was cut off went on
                          \
    R2                     `------o--------> ...       a replica was promoted, or a primary started again
                                   \
    R3                              `------> the end

A server answers at an offset of a replication id.  What it said holds if the log that is the primary's in the end
shares that offset.  `look` is told of each server's ids as they change, so the judge does not rely on what the last
server remembers of the past.
"""

from __future__ import annotations

from riverbed.store.replication_id import NO_ID, ReplicationIds
from tests.support.simulation.machine import Stamp


class Lines:
    def __init__(self) -> None:
        self._parents: dict[str, tuple[str, int]] = {}

    def look(self, ids: ReplicationIds) -> None:
        """A server has these ids now."""
        if ids.replication_id not in self._parents:
            self._parents[ids.replication_id] = (ids.previous_id, ids.branch_offset)

    def shared(self, replication_id: str) -> dict[str, float]:
        """Up to which offset the log of `replication_id` shares each id."""
        found: dict[str, float] = {}
        end = float("inf")
        while replication_id != NO_ID and replication_id not in found:
            found[replication_id] = end
            replication_id, offset = self._parents.get(replication_id, (NO_ID, -1))
            end = min(end, offset)
        return found


def holds(shared: dict[str, float], stamp: Stamp | None) -> bool:
    """Whether what was said at `stamp` must still be so."""
    return stamp is not None and stamp.offset <= shared.get(stamp.replication_id, -1)
