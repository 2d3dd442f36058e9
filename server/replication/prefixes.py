"""What foreign replicas that have taken a base come back for: the rest of the log, each by an id that only we know.

Such an id, its offset and its tail mean something as long as our log is the one that the base was of, and goes on under
the same id.  Otherwise the replica must be sent everything again: it would have the beginning of one store and the end
of another.  So nothing that was kept outlives the links of the replicas, which are cut off whenever that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.store.log.tail import LogTail

# How long a replica may take to come back.
PREFIX_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A base that ends at `offset`; `tail` reads what follows it."""

    offset: int
    tail: LogTail
    until_s: float


class Prefixes:
    """The prefixes of one server, by their ids."""

    def __init__(self, core: Core) -> None:
        self._engine = core.engine
        self._clock = core.clock
        self._kept: dict[str, _Prefix] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, prefix_id: str, offset: int, tail: LogTail) -> None:
        """A foreign replica has the base up to `offset` and will come back for what follows, which `tail` reads."""
        self._kept[prefix_id] = _Prefix(offset, tail, self._clock.monotonic() + PREFIX_S)

    def take(self, prefix_id: str, offset: int) -> LogTail | None:
        """The tail that was kept for a replica that has come back, if there is one; it is the caller's to close."""
        prefix = self._kept.get(prefix_id)
        if prefix is None or prefix.offset != offset or not prefix.tail.reads(self._engine.log):
            return None
        del self._kept[prefix_id]
        return prefix.tail

    def drop_old(self, takes_needed_space: Callable[[int], bool]) -> None:
        """Give up replicas that have not come back, and those for which too many bytes of deleted files are kept."""
        now_s = self._clock.monotonic()
        for prefix_id, prefix in list(self._kept.items()):
            if now_s > prefix.until_s or takes_needed_space(prefix.tail.held_bytes):
                prefix.tail.close()
                del self._kept[prefix_id]

    def drop_all(self) -> None:
        """Our log has been replaced, or goes on under another id."""
        for prefix in self._kept.values():
            prefix.tail.close()
        self._kept.clear()
