"""The commands of a batch, parsed by C code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import hiredis

from riverbed.store.format import log_lines
from riverbed.store.wire import IS_NATIVE, LOGGED, LoggedRequest, parse

FEED_BYTES: Final = 1 << 15


def whole_requests() -> Callable[[bytes, int, int], list[LoggedRequest] | None]:
    """A function that parses the requests between two positions, natively if possible; None if they are not whole."""
    return partial(parse, LOGGED) if IS_NATIVE else _HiredisReader().take


class _HiredisReader:
    """Parses whole commands with hiredis, where there is no native module."""

    def __init__(self) -> None:
        self._parser = hiredis.Reader()
        self._data = b""
        self._is_suspect = False  # hiredis might allocate too much memory for it

    def take(self, data: bytes, start: int, end: int) -> list[LoggedRequest] | None:
        if data is not self._data:
            self._data, self._is_suspect = data, log_lines.announces_too_much(data)
        if self._is_suspect and log_lines.announces_too_much(data[start:end]):
            return None
        parser = self._parser
        commands: list[LoggedRequest] = []
        try:
            # Feed pieces: hiredis moves the rest of its buffer after every kilobyte, so that 2.4 MB at once take 50 ms
            # instead of 9.
            for at in range(start, end, FEED_BYTES):
                parser.feed(data, at, min(FEED_BYTES, end - at))
                commands += iter(parser.gets, False)
            if not parser.has_data():
                return commands
        except hiredis.ProtocolError:
            pass
        self._parser = hiredis.Reader()
        return None
