"""Puts MULTI and EXEC around what belongs together in the log: the effect of one command, or a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn

_MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n"
_SELECT: Final = b"*2\r\n$6\r\nSELECT"
_EXEC: Final = b"*1\r\n$4\r\nEXEC\r\n"


def make_atomic(logged: list[bytes], mark: int) -> None:
    """Put MULTI and EXEC around the effect of a command that is several logged commands, for foreign readers."""
    if _put_multi(logged, mark):
        logged.append(_EXEC)


def _put_multi(logged: list[bytes], mark: int, *, has_runs: bool = False) -> bool:
    """Put MULTI before line `mark` if several commands follow, and no MULTI yet; -> whether it was put there.

    Where it `has_runs`, one of the lines is several commands.
    """
    if logged[mark : mark + 1] and logged[mark].startswith(_SELECT):
        mark += 1  # a file of the log begins with SELECT, whatever follows
    is_first = True
    for at in range(mark, len(logged)):
        if logged[at].startswith((b"#", _SELECT)):
            continue
        if is_first and logged[at] == _MULTI:
            return False
        if has_runs or not is_first:
            logged.insert(mark, _MULTI)
            return True
        is_first = False
    return False


class LoggedTransaction:
    """What a transaction logs, from line `mark` of its tick on, in one turn or in several."""

    def __init__(self, txn: WriteTxn, mark: int) -> None:
        self.is_long = False  # it has ended a turn
        self.has_runs = False  # a line of it may be several commands
        self._txn = txn
        self._mark = mark
        self._first = mark  # of the lines of this turn
        self._is_begun = False  # MULTI is in the log

    def turn_over(self) -> None:
        """Join the lines of this turn, so that the commit has few to join."""
        self.is_long = True
        txn = self._txn
        self._is_begun = self._is_begun or self._put_multi()
        if self._is_begun:
            self._join(self._first)
            self._first = len(txn.log)

    def end(self) -> None:
        """The last command has run."""
        if self._is_begun or self._put_multi():
            self._txn.log.append(_EXEC)
            if self.is_long:
                self._join(self._mark)

    def _put_multi(self) -> bool:
        return _put_multi(self._txn.log, self._mark, has_runs=self.has_runs)

    def _join(self, first: int) -> None:
        """Join the lines from this one on."""
        txn = self._txn
        lines = txn.log[first:]
        if lines and not txn.observers:  # these count lines
            txn.log[first:] = [b"".join(lines)]
