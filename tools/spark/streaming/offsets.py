"""How far a streaming query has come: an ID for each stream, as JSON in Spark's checkpoint.

    {"version": 2, "snapshot": "20261121T120000Z-517", "taken_ms": 1795262400000, "replication_id": "8c1f...",
     "store_id": "51d0...", "streams": {"0/events": {"id": "1700000000000-3", "seen": 3120, "number": 7,
     "numbering": "9b44...", "entry": ["1700000000000-3", "5f"]}}}

`snapshot` names the snapshot from which the batch that ends here is read; it is empty for a live store.  When that
snapshot is gone, `taken_ms` shows which snapshots are younger: their names need not.  Streams are named by database
and key, percent-encoded.

The other fields show whether a store continues what was read (`continuity.py`): the store's id and replication id; and
for each stream, how many entries had ever been added up to that ID (`seen`), the stream's number, the tables that gave
it this number, and the youngest entry up to that ID with its digest.  `"new": true` stands in the offset of a batch
that reads a stream from its first entry, although another stream of that key was read before.  `store_id` and
`numbering` were added later and may be missing.  Version 1 had only `seen` of these, and no `version`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from riverbed.store.ids import MIN_ID, StreamID, id_text, parse_id
from riverbed.tools.spark.errors import SourceError

StreamName = tuple[int, bytes]  # database and key


_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Mark:
    """An entry's ID and digest, to recognize the entry later."""

    entry_id: StreamID
    digest: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one stream was read: up to `last_id`, by when `seen` entries had ever been added.

    `number` and `mark` are None, and `numbering` is empty, when they are not known.
    """

    last_id: StreamID = MIN_ID
    seen: int = 0
    number: int | None = None
    mark: Mark | None = None
    is_new: bool = False
    numbering: str = ""

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"id": id_text(self.last_id).decode(), "seen": self.seen}
        if self.number is not None:
            values["number"] = self.number
        if self.numbering:
            values["numbering"] = self.numbering
        if self.mark is not None:
            values["entry"] = [id_text(self.mark.entry_id).decode(), self.mark.digest]
        if self.is_new:
            values["new"] = True
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        number, mark = values.get("number"), values.get("entry")
        return cls(
            _entry_id(values["id"]),
            int(values["seen"]),
            None if number is None else int(number),
            None if mark is None else Mark(_entry_id(mark[0]), str(mark[1])),
            bool(values.get("new", False)),
            str(values.get("numbering", "")),
        )


@dataclass(frozen=True, slots=True)
class Offset:
    """An end of a batch, and the beginning of the next."""

    snapshot: str = ""
    streams: dict[StreamName, Progress] = field(default_factory=dict)
    taken_ms: int = 0
    replication_id: str = ""
    store_id: str = ""

    def of(self, name: StreamName) -> Progress:
        return self.streams.get(name, Progress())

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "snapshot": self.snapshot,
            "taken_ms": self.taken_ms,
            "replication_id": self.replication_id,
            "store_id": self.store_id,
            "streams": {
                f"{db}/{quote_from_bytes(key)}": at.to_json() for (db, key), at in sorted(self.streams.items())
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Offset:
        """The offset in a checkpoint.  Raises SourceError for a checkpoint that is not of this source."""
        try:
            version = int(values.get("version", 1))
            if version > _VERSION:
                raise SourceError(
                    f"the checkpoint is one of a newer Riverbed: its offsets have version {version}, and this one "
                    f"knows {_VERSION}"
                )
            streams = {}
            for name, at in values["streams"].items():
                db, _, key = name.partition("/")
                streams[int(db), unquote_to_bytes(key)] = Progress.from_json(at)
            taken_ms, replication_id = int(values.get("taken_ms", 0)), str(values.get("replication_id", ""))
            store_id = str(values.get("store_id", ""))
            return cls(str(values["snapshot"]), streams, taken_ms, replication_id, store_id)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise SourceError(f"the checkpoint is not one of this source: {error!r}") from error


def _entry_id(text: str) -> StreamID:
    found = parse_id(text.encode())
    if found is None:
        raise ValueError(text)
    return found
