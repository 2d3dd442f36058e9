"""What costs most, of all that an audit found, and for each the command of redis-cli that begins to end it.

The cost is a number of entries: those that are held, kept or not read, and for poison entries the deliveries that were
done for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from riverbed.store.format.text import quote_text
from riverbed.tools.console.keytext import value_bytes

_RESCUER: Final = "rescue"  # a consumer of the commands here
_MANY: Final = 100

_Row = Mapping[str, Any]


def ranked_costs(report: _Row, most: int) -> list[dict[str, Any]]:
    """The first `most` costs of a report, the largest first.

    Each has `problem`, the stream, group and consumer as in the report's other rows, `cost`, and `command`, for a
    redis-cli that has chosen the stream's database.
    """
    found = sorted(_costs(report), key=lambda cost: -cost["cost"])
    return found[:most]


def _costs(report: _Row) -> Iterator[dict[str, Any]]:
    for row in report["poison_by_consumer"]:
        policy = f"MAXDELIVERIES {report['poison_from']} DEADLETTER {_word(value_bytes(row, 'key') + b':dead')}"
        yield _cost("poison", row, row["deliveries"], f"XGROUP POLICY {_names(row)} {policy}")
    stuck = set()
    for row in report["stuck_by_consumer"]:
        stuck.add(_names(row, "consumer"))
        yield _cost("stuck", row, row["entries"], _claim(row, report["stuck_after_ms"], row["first_id"]))
    for row in report["orphaned_by_consumer"]:
        yield _cost("orphaned", row, row["entries"], f"XACK {_names(row)} {row['first_id']}")
    for row in report["idle_consumers"]:
        if _names(row, "consumer") not in stuck:
            yield _cost("idle consumer", row, row["pending"], _claim(row, report["idle_after_ms"], "0"))
    lengths = {_stream(row): row["length"] for row in report["pins"]}
    for row in report["unread_groups"]:
        # A lag is unknown where entries are deleted, and is the whole stream at most.
        unread = lengths.get(_stream(row), 0) if row["lag"] is None else row["lag"]
        yield _cost(
            "group that is not read",
            {**row, "consumer": None},
            unread + row["pending"],
            f"XGROUP DESTROY {_names(row)}",
        )
    for row in report["pins"]:
        if row["needed_by_none"]:
            trim = f"XTRIM {_word(value_bytes(row, 'key'))} MINID {row['needed_id']} ACKED"
            yield _cost("entries that no group needs", {**row, "consumer": None}, row["needed_by_none"], trim)


def _claim(row: _Row, idle_ms: int, start: str) -> str:
    return f"XAUTOCLAIM {_names(row)} {_RESCUER} {idle_ms} {start} COUNT {_MANY}"


def _cost(problem: str, row: _Row, cost: int, command: str) -> dict[str, Any]:
    names = ("db", "key", "key_base64", "group", "group_base64", "consumer", "consumer_base64")
    return {"problem": problem, **{name: row[name] for name in names if name in row}, "cost": cost, "command": command}


def _stream(row: _Row) -> tuple[int, bytes]:
    return row["db"], value_bytes(row, "key")


def _names(row: _Row, *more: str) -> str:
    return " ".join(_word(value_bytes(row, name)) for name in ("key", "group", *more))


def _word(value: bytes) -> str:
    """A word as redis-cli reads it."""
    return quote_text(os.fsdecode(value))
