"""What takes part in the write transaction: objects that it asks to write rows or to log, or tells of changes."""

from __future__ import annotations

from typing import Protocol


class Dirty(Protocol):
    """An object that caches rows and has changed them."""

    def write_back(self) -> None:
        """Put the changed rows into their tables."""

    def write_part(self) -> bool:
        """Put about a millisecond's worth of the changed rows into their tables; -> whether these were all."""


class Overfull(Protocol):
    """An object that has much in memory which the next commands would have to put into its tables."""

    def write_behind(self) -> None:
        """Put some of it there: mostly in a tenth of a millisecond, in half of one where the rows are scattered."""


class Unlogged(Protocol):
    """An object with changes that the lines logged by the open command may not contain."""

    def log_rest(self) -> None:
        """Log the changes that these lines do not contain."""


class Observer(Protocol):
    """An object that has to know what is logged while it lives, as it works in slices on what commands may change."""

    def logged(self, log: list[bytes]) -> None:
        """Look at what this tick has logged; the list begins again behind this call."""

    def record_dropped(self, records_no: int) -> None:
        """Note that an idempotence record was dropped, which is not logged."""

    def lost(self) -> None:
        """Note that the tables have changed in ways that it was not shown."""
