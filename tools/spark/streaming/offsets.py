"""How far a streaming query has come: an ID for each stream, as JSON in Spark's checkpoint.

    {"version": 3, "snapshot": "20261121T120000Z-517", "taken_ms": 1795262400000, "replication_id": "8c1f...",
     "store_id": "51d0...", "numberings": ["9b44..."],
     "streams": {"0/events": ["1700000000000-3", 3120, 7, 0, "5f"]}}

`snapshot` names the snapshot from which the batch that ends here is read; it is empty for a live store.  When that
snapshot is gone, `taken_ms` shows which snapshots are younger: their names need not.  Streams are named by database
and key, percent-encoded.

The other fields show whether a store continues what was read (`continuity.py`): the store's id and replication id; and
for each stream, behind the ID, how many entries had ever been added up to it, the stream's number, the index of the
tables that gave it this number, and the digest of the youngest entry up to that ID, whose ID comes next unless it is
the same.  Then come how many entries behind the ID had been deleted one by one, and the ID of the first one that was
there.  What is not known, or no number, is null, and nulls at the end are left out.  The streams in `new` are read from
their first entry in the batch that ends here, although other streams of their keys were read before.

Versions 1 and 2 had an object for each stream: `id`, `seen`, `number`, `numbering`, `entry` and `new`, of which version
1 had the first two alone, and no `version`.  A checkpoint of theirs goes on with offsets of this version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from riverbed.store.ids import MIN_ID, StreamID, id_text, parse_id
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.reading.options import StreamName, name_text

_VERSION: Final = 3
_OBJECTS: Final = 2  # the last version with an object for each stream


@dataclass(frozen=True, slots=True)
class Mark:
    """An entry's ID and digest, to recognize the entry later."""

    entry_id: StreamID
    digest: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one stream was read: up to `last_id`, by when `seen` entries had ever been added.

    `number` and `mark` are None, and `numbering` is empty, when they are not known.  `holes` of the entries behind
    `last_id` had been deleted, as far as their nodes show, and `next_id` was the first that was there; None for none.
    """

    last_id: StreamID = MIN_ID
    seen: int = 0
    number: int | None = None
    mark: Mark | None = None
    is_new: bool = False
    numbering: str = ""
    holes: int = 0
    next_id: StreamID | None = None

    def to_json(self, numberings: dict[str, int]) -> list[Any]:
        """As a list; a numbering that is not among `numberings` is added to them."""
        place = numberings.setdefault(self.numbering, len(numberings)) if self.numbering else None
        digest = entry = None
        if self.mark is not None:
            digest = self.mark.digest
            entry = None if self.mark.entry_id == self.last_id else id_text(self.mark.entry_id).decode()
        next_text = None if self.next_id is None else id_text(self.next_id).decode()
        values = [id_text(self.last_id).decode(), self.seen, self.number, place, digest, entry]
        values += [self.holes or None, next_text]
        while values[-1] is None:
            values.pop()
        return values

    @classmethod
    def from_json(cls, values: list[Any], numberings: list[str], *, is_new: bool) -> Progress:
        padded: list[Any] = values + [None] * 8
        last, seen, number, place, digest, entry, holes, following = padded[:8]
        last_id = _entry_id(last)
        mark = None if digest is None else Mark(last_id if entry is None else _entry_id(entry), str(digest))
        numbering = "" if place is None else str(numberings[place])
        number = None if number is None else int(number)
        next_id = None if following is None else _entry_id(following)
        return cls(last_id, int(seen), number, mark, is_new, numbering, int(holes or 0), next_id)

    def to_object(self) -> dict[str, Any]:
        """As versions 1 and 2 had it, and lists of exports have it."""
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
    def from_object(cls, values: dict[str, Any]) -> Progress:
        """What `to_object` returned."""
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
        numberings: dict[str, int] = {}
        streams = {name_text(name): at.to_json(numberings) for name, at in sorted(self.streams.items())}
        values = {
            "version": _VERSION,
            "snapshot": self.snapshot,
            "taken_ms": self.taken_ms,
            "replication_id": self.replication_id,
            "store_id": self.store_id,
            "numberings": list(numberings),
            "streams": streams,
        }
        new = [name_text(name) for name, at in sorted(self.streams.items()) if at.is_new]
        return values | {"new": new} if new else values

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
            numberings, new = values.get("numberings", []), set(values.get("new", ()))
            streams = {}
            for name, at in values["streams"].items():
                db, _, key = name.partition("/")
                streams[int(db), unquote_to_bytes(key)] = (
                    Progress.from_object(at)
                    if version <= _OBJECTS
                    else Progress.from_json(at, numberings, is_new=name in new)
                )
            taken_ms, replication_id = int(values.get("taken_ms", 0)), str(values.get("replication_id", ""))
            store_id = str(values.get("store_id", ""))
            return cls(str(values["snapshot"]), streams, taken_ms, replication_id, store_id)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise SourceError(f"the checkpoint is not one of this source: {error!r}") from error


def _entry_id(text: str) -> StreamID:
    found = parse_id(text.encode())
    if found is None:
        raise ValueError(text)
    return found
