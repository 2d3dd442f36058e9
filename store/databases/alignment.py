"""Has the rows of a stream end a page of table `entries` where the rows of another stream follow.

The rows of all streams are in one tree, so the last ones of a stream mostly share a page with the first ones of the
next.  LMDB splits a full page in half, unless the new row comes behind all others of the page; then it leaves the page
full.  So each page that is split off a shared one stays half empty, and the rest is shared again, for ever:

    [ a1 ............ a9 b1 b2 ]
    [ a1 .. a5 ] [ a6 .. a10 b1 b2 ]    for a10; the right one is split the same way for a15

LMDB has no call that splits a page at a given row.  But it splits a page that a row does not fit into, and *fillers* of
half a page leave it no choice where.  Three of them are put between the two streams, and deleted again at once:

    [ a6 .. a9 F b1 b2 ]                beside the first few rows have room: the page was split, if it was too full
    [ a6 .. a9 F ] [ G b1 b2 ]          no row has room beside the first and the second
    [ a6 .. a9 F ] [ G H ] [ b1 b2 ]    the second and the third fill a page to the last byte
    [ a6 .. a8 ] [ a9 ] [ b1 b2 ]       LMDB moves the last row before an empty page into it

No row is deleted, put or read.  Fillers are never committed, and nothing else runs while they are there.  From now on
the page is not shared, until rows of the next stream are deleted from its first page: when that is less than a quarter
full, LMDB moves rows of the page before into it.  Trims of the next stream do so again and again, and leave the end of
the stream before on a page of its own as often as not, so that to align it again behind each trim gains nothing.

So a stream is *looked at* when it has closed nodes (`Stream.open_node`), and its end is aligned at the second look that
finds the same first row behind it.  A stream of a few dozen entries costs nothing.  One that is the last in the table,
or is loaded as a whole before the next begins, costs a look now and then.  Measured: 2 us a look, 5 us an alignment,
and two more pages for the next commit.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.store.format.streams import stream_prefix

if TYPE_CHECKING:
    from riverbed.store.tables.writing.transaction import Transaction

# Streams that are looked at in one go: in half a millisecond if all of them are aligned.
PART: Final = 64
# Alignments for which pages wait for one commit: they add two milliseconds to it.
_A_COMMIT: Final = 1024
# Streams that wait to be looked at; one for which there is no room waits until it has grown again.
_MAX_DUE: Final = 1 << 14
# How many times a stream has grown until it is looked at again.
_GROWN: Final = 8
# What is remembered of streams, in 5 bytes for each of so many: streams whose numbers differ by a multiple of it share
# the place, and may be looked at earlier, or not aligned again after one of them was.
_PLACES: Final = 1 << 16
_NOTHING: Final = 0
_IS_ALIGNED: Final = 1
_HASH_BITS: Final = 0xFFFFFFFE
# Of LMDB 0.9: the bytes in front of a page, in front of a row, and of its place in the page.
_PAGE_HEAD: Final = 16
_ROW_HEAD: Final = 8
_PLACE: Final = 2
# Above the keys of all entries of a stream, and below those of the next.
_ABOVE_IDS: Final = b"\xff" * 16
_FILLERS: Final = 3


class Alignment:
    """Which streams are to be looked at, and what the last look has found, in a fixed number of bytes."""

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn
        self._given_up: set[int] = set()  # streams where it has failed: their pages may be damaged
        self.restart()

    def restart(self) -> None:
        """Forget what was found: the transaction begins again from the last commit."""
        self._due: dict[int, None] = {}
        self._until_look = bytearray(_PLACES)  # how many times a stream has to grow
        # The hash of the first row behind a stream, and whether its end was aligned there.
        self._found = array("I", bytes(4 * _PLACES))
        self._left = _A_COMMIT

    @property
    def parts(self) -> int:
        """How many times `align_part` has a full part to look at before the next commit."""
        self._take_in()
        return 0 if self._txn.is_short_of_space else min(len(self._due), self._left) // PART

    def align_part(self) -> None:
        """Look at up to `PART` streams that have grown.  Raises lmdb.Error, with the transaction aborted."""
        self._take_in()
        if not self._txn.is_short_of_space:
            self._align(min(PART, self._left))

    def align_all(self) -> None:
        """Look at all streams that have grown, for one who lets no client wait.  Raises as `align_part` does."""
        self._take_in()
        self._align(len(self._due))

    def committed(self) -> None:
        """Begin to count what is left to the next commit."""
        self._left = _A_COMMIT

    def _take_in(self) -> None:
        """Count which streams have grown."""
        grown = self._txn.grown
        for stream_no in grown:
            place = stream_no % _PLACES
            if self._until_look[place] > 1:
                self._until_look[place] -= 1
            elif len(self._due) < _MAX_DUE:
                self._due[stream_no] = None
        grown.clear()

    def _align(self, most: int) -> None:
        for _ in range(min(most, len(self._due))):
            stream_no = next(iter(self._due))
            del self._due[stream_no]
            if stream_no not in self._given_up:
                self._look_at(stream_no)

    def _look_at(self, stream_no: int) -> None:
        """Align the end of a stream if the row behind it is the one that the last look has found."""
        place = stream_no % _PLACES
        before = self._found[place]
        self._until_look[place] = 1 if before == _NOTHING else _GROWN
        try:
            following = row_behind(self._txn, stream_no)
            if following is None:
                return
            found = hash((stream_no, following)) & _HASH_BITS
            if before == found:
                split_behind(self._txn, stream_no)
                self._left = max(self._left - 1, 0)
                found |= _IS_ALIGNED
            elif before == found | _IS_ALIGNED:
                found = before
        except BaseException:
            self._given_up.add(stream_no)
            raise
        self._found[place] = found


def row_behind(txn: Transaction, stream_no: int) -> bytes | None:
    """The key of the row behind those of a stream; None when one of both is missing, or they are out of order.

    Damage is for others to find.  Raises lmdb.Error.
    """
    cursor, low = txn.appender, filler_key(stream_no, 0)
    if not cursor.set_range(low):
        return None
    key = cursor.key()
    is_between = key > low and cursor.prev() and cursor.key().startswith(stream_prefix(stream_no))
    return key if is_between else None


def split_behind(txn: Transaction, stream_no: int) -> None:
    """Have LMDB split the page that a stream shares with the next one.

    Whatever fails, it aborts the transaction, so that no caller can commit a filler.  Raises lmdb.Error.
    """
    entries = txn.handles["entries"]
    half = (txn.lmdb.stat(entries)["psize"] - _PAGE_HEAD) // 2 & -2  # a longer row would not be kept in the leaf
    keys = [filler_key(stream_no, number) for number in range(_FILLERS)]
    filler = bytes(half - _PLACE - _ROW_HEAD - len(keys[0]))
    try:
        txn.appender.putmulti([(key, filler) for key in keys])
        for key in reversed(keys):
            if not txn.lmdb.delete(key, db=entries):
                raise lmdb.CorruptedError("a row that was put is not there")
    except BaseException:
        txn.abort()
        raise


def filler_key(stream_no: int, number: int) -> bytes:
    """The key of one of the fillers behind a stream; `number` is below 256."""
    return stream_prefix(stream_no) + _ABOVE_IDS + bytes((number,))
