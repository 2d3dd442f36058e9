"""The next file of the log, while the manifest does not list it yet.

    current     | preface | batches |  batch  |  batch  |        closed where the successor begins, once that is listed
    successor                       | preface |  batch  |  batch  |

To list it takes several syncs, in a thread.  Until then each batch is written to both files, so a crash finds all of
the log whichever manifest it leaves.  Readers leave out what a closed file has behind its size, and it is cut off when
another file begins, or the log is closed or read at a start.
"""

from __future__ import annotations

from riverbed.store.disk.durable_file import write_all_at
from riverbed.store.disk.files import Files
from riverbed.store.position import LogPosition


class Successor:
    """The open file `fd`, which continues the log from `start` on, a place in the current file.

    `shift` is what is added to a byte of the current file to have that of the successor.
    """

    def __init__(self, files: Files, fd: int, file_seq: int, start: LogPosition, preface: bytes) -> None:
        """Write `preface` into the file, which is empty.  Raises OSError."""
        self.fd = fd
        self.file_seq = file_seq
        self.start = start
        self.shift = len(preface) - start.position
        self._files = files
        self.write(preface, 0 - self.shift)

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Write what the current file has at `position`.  Raises OSError."""
        write_all_at(self._files, self.fd, data, position + self.shift)

    def truncate(self, position: int) -> None:
        """Have the file end with what the current file has before `position`.  Raises OSError."""
        self._files.truncate(self.fd, position + self.shift)

    def sync(self) -> None:
        """Make all of it durable.  Raises OSError."""
        self._files.sync(self.fd)
