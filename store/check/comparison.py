"""Compare two states of the tables by the canonical commands that the rewrite makes of them.

    databases   by number           their keys in order, side by side
    entries     row by row          an XADD each
    the rest    command by command  counters, groups, pending entries, idempotence records, the deadline

The commands depend only on the state, not on the layout of the rows: assigned numbers, floors, nodes, runs.  For each
key the comparison finds the first command that differs.  Expired idempotence records are left out, because no log says
when they were deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, zip_longest
from typing import Final, NamedTuple, TypeVar

from riverbed.store.format.log_lines import CommandCollector, parse_frame
from riverbed.store.format.resp import decode_entry
from riverbed.store.format.streams import StreamRow, encode_keyspace_no
from riverbed.store.format.text import key_text
from riverbed.store.ids import id_ms, parse_id
from riverbed.store.log.commands import Piece
from riverbed.store.rewrite.state import stream_pieces
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import keyspaces

Value = TypeVar("Value")

# Entries compared at a time.
_CHUNK: Final = 1024
# Limits for a command that is shown.
_SHOWN_WORDS: Final = 12
_SHOWN_BYTES: Final = 60
# The index of the group's name in commands that have one.
_GROUP_AT: Final = {b"XCLAIM": 2, b"XNACK": 2, b"XSEEN": 2, b"XGROUP": 3}


class Difference(NamedTuple):
    """The first difference of a key: a command of each side.

    The command is empty when the side has no more commands, and None when the side has no key.
    """

    db: int
    key: bytes
    ours: list[bytes] | None
    theirs: list[bytes] | None

    @property
    def command(self) -> bytes:
        """The name of the command that best shows the difference, b"" when one side has no key."""
        return self._telling[0]

    @property
    def group(self) -> bytes | None:
        """The group that differs, if the difference is in a group."""
        at = _GROUP_AT.get(self._telling[0])
        return None if at is None else self._telling[at]

    @property
    def _telling(self) -> list[bytes]:
        sides = [words for words in (self.ours, self.theirs) if words]
        return next((words for words in sides if words[0] in _GROUP_AT), sides[0] if sides else [b""])

    def shown(self) -> tuple[str | None, str | None]:
        """Each command as one line, shortened around the first word that differs; None when one side has no key."""
        if self.ours is None or self.theirs is None:
            return None, None
        sides = self.ours, self.theirs
        at = next((at for at, pair in enumerate(zip(*sides, strict=False)) if pair[0] != pair[1]), 0)
        return _shown(sides[0], at), _shown(sides[1], at)


def _shown(words: list[bytes], at: int) -> str:
    if not words:
        return "nothing more"
    start = 0 if at < _SHOWN_WORDS else at - 1
    texts = [_word(word) for word in words[start : start + _SHOWN_WORDS]]
    if start:
        texts = [*map(_word, words[:4]), "...", *texts]
    return " ".join([*texts, "..."] if start + _SHOWN_WORDS < len(words) else texts)


def _word(word: bytes) -> str:
    text = key_text(word[:_SHOWN_BYTES]) + ("..." if len(word) > _SHOWN_BYTES else "")
    return text if text and " " not in text else f'"{text}"'


class _Side(NamedTuple):
    """A stream on one of the two sides."""

    reader: TableReader
    key: bytes
    row: StreamRow

    def values(self) -> Iterator[bytes]:
        """The rows of the entries.  A row contains its ID, so equal rows are equal entries."""
        return StreamEntries(self.reader, self.row).values()

    def add(self, row: bytes | None) -> list[bytes]:
        """The XADD for a row."""
        if row is None:
            return []
        entry_id, fields = decode_entry(row)
        return [b"XADD", self.key, entry_id, *fields]

    def has_expired(self, words: list[bytes], now_ms: int) -> bool:
        """Whether `words` is an idempotence record that has expired."""
        settings = self.row.idempotence
        if words[0] != b"XIDMPRECORD" or settings is None:
            return False
        entry_id = parse_id(words[-1])
        return entry_id is not None and id_ms(entry_id) + 1000 * (settings.duration_s or 0) <= now_ms


class Comparison:
    """The comparison of two sides, each in a transaction of its own.

    `now_ms` decides which idempotence records have expired.  Without `has_times` the times at which consumers were seen
    are ignored, because a log of Redis does not hold them.  `matches` selects the keys to compare.
    """

    def __init__(
        self,
        ours: TableReader,
        theirs: TableReader,
        *,
        now_ms: int,
        has_times: bool = True,
        matches: Callable[[bytes], object] | None = None,
    ) -> None:
        self._readers = ours, theirs
        self._now_ms = now_ms
        self._has_times = has_times
        self._matches = matches
        self.streams = 0  # compared so far
        self.entries = 0

    def differences(self) -> Iterator[Difference | None]:
        """Yield the first difference of each key, and None now and then so that the caller can show progress.

        Raises CorruptionError when the tables are inconsistent, one of DECODE_ERRORS when a row does not decode.
        """
        for db, numbers in enumerate(zip(*map(keyspaces, self._readers), strict=True)):
            ours, theirs = (_keys(reader, number) for reader, number in zip(self._readers, numbers, strict=True))
            for packed, row, other in _join(ours, theirs):
                known = row or other
                assert known is not None
                key = packed[1:] if known.long_key is None else known.long_key
                yield None
                if self._matches is not None and not self._matches(key):
                    continue
                self.streams += 1
                if row is None or other is None:
                    yield Difference(db, key, None if row is None else [], None if other is None else [])
                    continue
                sides = [_Side(reader, key, each) for reader, each in zip(self._readers, (row, other), strict=True)]
                for found in chain(self._entries(*sides), self._rest(*sides)):
                    if found is not None:
                        yield Difference(db, key, *found)
                        break
                    yield None

    def _entries(self, ours: _Side, theirs: _Side) -> Iterator[tuple[list[bytes], list[bytes]] | None]:
        rows = ours.values(), theirs.values()
        while True:
            chunks = [list(islice(each, _CHUNK)) for each in rows]
            if chunks[0] != chunks[1]:
                pairs = zip_longest(*chunks)
                yield next((ours.add(row), theirs.add(other)) for row, other in pairs if row != other)
            if not chunks[0]:
                return
            self.entries += len(chunks[0])
            yield None

    def _rest(self, ours: _Side, theirs: _Side) -> Iterator[tuple[list[bytes], list[bytes]] | None]:
        """Compare pieces as bytes; parse them only from the first one that differs."""
        pieces = [stream_pieces(*side, has_entries=False) for side in (ours, theirs)]
        for piece, other in zip_longest(*pieces):
            yield None
            if piece == other:
                continue
            commands = self._commands(ours, piece, pieces[0]), self._commands(theirs, other, pieces[1])
            for number, (has, makes) in enumerate(zip_longest(*commands)):
                if has != makes:
                    yield has or [], makes or []
                elif not number % _CHUNK:
                    yield None

    def _commands(self, side: _Side, first: Piece | None, others: Iterator[Piece]) -> Iterator[list[bytes]]:
        for piece in chain((first,), others) if first is not None else ():
            for words in _parsed(piece.data):
                is_left_out = (words[0] == b"XSEEN" and not self._has_times) or side.has_expired(words, self._now_ms)
                if not is_left_out:
                    yield words


def _parsed(data: bytes) -> Iterator[list[bytes]]:
    """The commands of a piece, including the ones in comment lines."""
    collector = CommandCollector()
    at = 0
    while at < len(data):
        words, end = parse_frame(data, at)
        if words is None:
            collector.take_comment(data[at:end])
        else:
            collector.take_command(words)
        if len(collector.commands) >= _CHUNK:
            yield from collector.commands
            collector.commands.clear()
        at = end
    collector.finish()
    yield from collector.commands


def _keys(reader: TableReader, keyspace_no: int) -> Iterator[tuple[bytes, StreamRow]]:
    """The rows of one keyspace, by key or digest."""
    prefix = encode_keyspace_no(keyspace_no)
    for packed, row in reader.rows("keys", prefix):
        yield packed[len(prefix) :], StreamRow.unpack(packed, row)


def _join(
    ours: Iterable[tuple[bytes, Value]], theirs: Iterable[tuple[bytes, Value]]
) -> Iterator[tuple[bytes, Value | None, Value | None]]:
    """Merge two ascending lists by key, with None where one list lacks the key."""
    left, right = iter(ours), iter(theirs)
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a[0], a[1], None
            a = next(left, None)
        elif a is None or b[0] < a[0]:
            yield b[0], None, b[1]
            b = next(right, None)
        else:
            yield a[0], a[1], b[1]
            a, b = next(left, None), next(right, None)
