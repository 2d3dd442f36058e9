"""How far a streaming query has come: an ID for each stream, as JSON in Spark's checkpoint.

    {"snapshot": "20261121T120000Z-517", "taken_ms": 1795262400000,
     "streams": {"0/events": {"id": "1700000000000-3", "seen": 3120}}}

`snapshot` is the one to read the batch that ends here from, empty for a live store, and `taken_ms` tells which came
after it when it is gone: names may be anything.  Streams are named by database and
key, percent-encoded, as their numbers may change when a store is restored.  `seen` is how many entries had ever
been added when that ID was: if a stream has lost more than that at its beginning, some were never read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from store.ids import MIN_ID, StreamID, id_text, parse_id
from tools.spark.errors import SourceError

StreamName = tuple[int, bytes]  # database and key


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one stream: everything up to `last_id` was read, of `seen` entries that were ever added up to there."""

    last_id: StreamID = MIN_ID
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Offset:
    """An end of a batch, and the beginning of the next."""

    snapshot: str = ""
    streams: dict[StreamName, Progress] = field(default_factory=dict)
    taken_ms: int = 0

    def of(self, name: StreamName) -> Progress:
        return self.streams.get(name, Progress())

    def to_json(self) -> dict[str, Any]:
        return {
            "snapshot": self.snapshot,
            "taken_ms": self.taken_ms,
            "streams": {
                f"{db}/{quote_from_bytes(key)}": {"id": id_text(at.last_id).decode(), "seen": at.seen}
                for (db, key), at in sorted(self.streams.items())
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Offset:
        """Raises SourceError for a checkpoint that is not of this source."""
        try:
            streams = {}
            for name, at in values["streams"].items():
                db, _, key = name.partition("/")
                last_id = parse_id(at["id"].encode())
                if last_id is None:
                    raise ValueError(at["id"])
                streams[int(db), unquote_to_bytes(key)] = Progress(last_id, int(at["seen"]))
            return cls(str(values["snapshot"]), streams, int(values.get("taken_ms", 0)))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise SourceError(f"the checkpoint is not one of this source: {error!r}") from error
