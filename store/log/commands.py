"""Joins commands into pieces, each of which is written to a file or a socket as a whole.

A piece ends between two commands and after about a megabyte, so that the writer of a state of any size holds no more
of it than that.  Commands that Redis 7 does not know stand in comment lines, and are left out on request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from riverbed.store.format.log_lines import encode_extension
from riverbed.store.format.resp import encode_command

PIECE_BYTES: Final = 1 << 20


class Piece(NamedTuple):
    """Whole commands.  `command_bytes` is the length without comment lines, `entries` how many XADD there are."""

    data: bytes
    command_bytes: int
    entries: int


class Composer:
    """Collects commands; `take` returns them as one piece."""

    def __init__(self, *, extensions: bool) -> None:
        self._extensions = extensions
        self._parts: list[bytes] = []
        self._comment_bytes = 0
        self._entries = 0
        self.size = 0

    @property
    def is_full(self) -> bool:
        return self.size >= PIECE_BYTES

    def take(self) -> Piece:
        """Return everything so far and begin the next piece."""
        data = b"".join(self._parts)
        piece = Piece(data, len(data) - self._comment_bytes, self._entries)
        self._parts.clear()
        self.size = self._comment_bytes = self._entries = 0
        return piece

    def command(self, *words: bytes) -> None:
        self.wire(encode_command(list(words)))

    def wire(self, command: bytes) -> None:
        """Add a command that is encoded already."""
        self._parts.append(command)
        self.size += len(command)

    def adds(self, commands: bytes, count: int) -> None:
        """Add `count` XADDs that are encoded already."""
        self.wire(commands)
        self._entries += count

    def extension(self, *words: bytes) -> None:
        """Add a command that Redis 7 does not know."""
        if self._extensions:
            lines = encode_extension(list(words))
            self.wire(lines)
            self._comment_bytes += len(lines)
