"""Keeps the numbers of standard input, output and error from the files of a store."""

from __future__ import annotations

import os
from typing import Final

_LAST: Final = 2


def fill_standard_descriptors() -> None:
    """Open /dev/null in the place of each of the three that is closed; call it before a file or a socket is opened.

    A file of the store that got such a number would have in it whatever a library writes to standard error, and libuv
    ends a process that closes such a number.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST:
        pass
    os.close(fd)
