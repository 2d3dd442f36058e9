"""Lines of `#` behind the last batch, which later batches are written over.

    | batch #CK | batch #CK |#########\n#########\n#########\n|
                 position ->'                       padding ->'

A sync of a file that has grown makes its new length and its blocks durable as well, in the journal of the file system.
A sync of bytes that replace others writes those alone: for a batch of 1 KB 93 us in place of 140 on the disk of
`benchmarks/README.md`, and 41 in place of 63 of the processor's time.  So where each reply waits for a sync, the file
is up to 1.5 MB longer than the log.

The padding is comment lines to every reader of the format, a Redis too, wherever a batch ends in it: line ends stand at
fixed places of the file, and where a batch would end directly before one, `#` and another line end take its place.  So
a line never exceeds what a Redis reads, and a Redis that appends to the file begins a line.
"""

from __future__ import annotations

from typing import Final

from riverbed.store.disk.durable_file import write_all_at
from riverbed.store.disk.files import Files

# A batch of more bytes gains little, as its own bytes take most of the sync.
MAX_BATCH_BYTES: Final = 256 << 10
# What is written at once is for 16 batches, within these bounds.  Less costs as much a batch, and more makes the sync
# that writes it longer.
MIN_BYTES = 256 << 10
MAX_BYTES: Final = 1 << 20
_READ_BYTES: Final = 4 << 10
_PAGE_BYTES: Final = 4 << 10  # of the system's cache

LINE_BYTES: Final = 512
_LINE: Final = b"#" * (LINE_BYTES - 1) + b"\n"
# A line of its own for a batch that ends one byte before the end of a line.
SHORT_LINE: Final = b"#\n"


def padding(start: int, end: int) -> bytes:
    """The padding from byte `start` of a file to byte `end`, the beginning of a line."""
    head = start % LINE_BYTES
    lines = _LINE * ((end - start + head) // LINE_BYTES)
    return SHORT_LINE + lines[LINE_BYTES + 1 :] if head == LINE_BYTES - 1 else lines[head:]


def end_of_batches(files: Files, fd: int, size: int) -> int:
    """Where the padding of a file of `size` bytes begins; `size` when it has none.  Raises OSError.

    It ends with a line, at a place for line ends or, behind a short line, a byte later.
    """
    if size == 0 or size % LINE_BYTES > 1 or files.read_at(fd, 1, size - 1) != b"\n":
        return size
    start = size
    while start > 0:
        end, start = start, max(start - _READ_BYTES, 0)
        rest = files.read_at(fd, end - start, start).rstrip(b"#\n")
        if size - start > 2 * MAX_BYTES:  # no padding of ours
            return size
        if rest:
            # the line end of the last batch went with the padding
            start += len(rest)
            return start + (files.read_at(fd, 1, start) == b"\n")
    return 0


class Padding:
    """The padding of the file that is appended to."""

    def __init__(self, files: Files) -> None:
        self.end = 0  # of the file, where it may be behind the last batch
        self._files = files
        self._refused_until = 0

    def reset(self, file_bytes: int = 0) -> None:
        """All behind the last batch of a file of `file_bytes` is padding; without a length there is none."""
        self.end = file_bytes
        self._refused_until = 0

    def behind(self, end: int) -> bytes:
        """What is written with a batch that ends at byte `end`, where the rest of the padding would begin with LF."""
        if end >= self.end or end % LINE_BYTES != LINE_BYTES - 1:
            return b""
        self.end = max(self.end, end + len(SHORT_LINE))
        return SHORT_LINE

    def grow(self, fd: int, position: int, size: int) -> None:
        """See that the next batches of `size` bytes, from `position` on, replace padding.

        A disk that refuses it is not asked again soon.
        """
        near = position + 2 * size  # the next one may be longer
        if near <= self.end or position < self._refused_until or size > MAX_BATCH_BYTES:
            return
        start = max(position, self.end)
        end = (near + min(max(16 * size, MIN_BYTES), MAX_BYTES)) // LINE_BYTES * LINE_BYTES
        try:
            self._write(fd, start, end, _PAGE_BYTES if size < _PAGE_BYTES else end)
        except OSError:
            self._refused_until = position + MIN_BYTES
            try:
                self._files.truncate(fd, start)
            except OSError:
                # some of it may be there, and is cut off later; none is put behind what may be missing
                self._refused_until = self.end = end
        else:
            self.end = end

    def _write(self, fd: int, start: int, end: int, step: int) -> None:
        """Write padding in pieces that end at multiples of `step`.  Raises OSError.

        The system keeps what one write brings in few pieces of its cache (folios), and counts all of a piece as written
        by the process whenever a part of it is: 87 KB for each batch of 170 bytes, of which the disk gets 4 KB.
        """
        data = memoryview(padding(start, end))
        at = start
        while at < end:
            stop = min((at // step + 1) * step, end)
            write_all_at(self._files, fd, data[at - start : stop - start], at)
            at = stop
