"""What a person can do about damage that `Repair` refuses to mend, because something has to be given up for it."""

from __future__ import annotations

from typing import Final, NamedTuple

from riverbed.store.check import Check, Violation
from riverbed.store.check.log import BACKLOG
from riverbed.store.swap import Places

_ELSEWHERE: Final = "restore a snapshot, or copy a replica"


class Advice(NamedTuple):
    """What is in the way of a repair, and the cure."""

    reason: str
    cure: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.cure}"


def advice(check: Check, found: list[Violation]) -> Advice | None:
    """What a person has to decide about `found`, all that `check` has just found; None if a repair mends it."""
    broken_log = [violation for violation in found if violation.table == "log"]
    broken_tables = [violation for violation in found if violation.table not in ("log", BACKLOG)]
    if check.log.is_missing and check.meta is not None and not broken_tables:
        return None
    if broken_log:
        return _about_log(check, broken_log, broken_tables)
    end = check.log.end
    if broken_tables and end is None:
        state = Places(check.directory).state
        return Advice(f"the tables in {state} are broken, and there is no log to make them from", _ELSEWHERE)
    if broken_tables and end is not None and check.meta is not None and check.meta.position.offset > end.offset:
        return _disagreement(check, broken_tables)
    return None


def _about_log(check: Check, broken_log: list[Violation], broken_tables: list[Violation]) -> Advice:
    first = broken_log[0]
    if not broken_tables and (check.was_in_use or check.is_in_use()):
        return Advice(f"the log is broken ({first})", "send BGREWRITEAOF: the server makes the log again of its tables")
    if check.log.is_short and len(broken_log) == 1:
        return _disagreement(check, broken_tables)
    if broken_tables:
        return Advice(
            f"both halves are broken, the log ({first}) and the tables ({broken_tables[0]})",
            _ELSEWHERE,
        )
    if check.meta is None:
        return Advice(f"the log is broken ({first}), and there are no tables", _ELSEWHERE)
    offset = check.meta.position.offset
    return Advice(
        f"the log is broken ({first}), and the tables are whole, up to replication offset {offset}",
        f"to go on from offset {offset}, without the writes that only the log has, {_new_log(check)}; or {_ELSEWHERE}",
    )


def _disagreement(check: Check, broken_tables: list[Violation]) -> Advice:
    """The advice when the log is whole, but ends before the position that the tables cover."""
    assert check.meta is not None and check.log.end is not None
    covered, end = check.meta.position.offset, check.log.end.offset
    cure = f"to go on with the log's state, move {Places(check.directory).state} away"
    if not broken_tables:
        cure = f"{cure}; with the tables' state, {_new_log(check)}"
    return Advice(f"the tables cover replication offset {covered}, and the log ends at {end}", cure)


def _new_log(check: Check) -> str:
    return f"move {Places(check.directory).home} away and run `riverbed check --repair {check.directory}`"
