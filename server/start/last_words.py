"""What a fatal error of the server writes, for the start after it.

LMDB has its file in the memory of the process: a page that the disk cannot read ends it by a signal, and so does one in
which LMDB meets what it takes for impossible.  No exception tells of that.  Python writes where it was, and the next
start looks through all pages of the tables, however many there are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.real_files import is_there, open_file, read_file
from riverbed.store.layout import LAST_WORDS_NAME

_MAX_BYTES: Final = 8 << 10
_STANDARD_ERROR: Final = 2

log = logging.getLogger("riverbed")


def tell_by_standard_error() -> None:
    """Have a fatal error of this process write to standard error."""
    faulthandler.enable(_STANDARD_ERROR)


@contextlib.contextmanager
def kept_last_words(directory: Path) -> Iterator[None]:
    """Have one write to a file in `directory`; log what that of the server before has written.

    The store in `directory` is open.  Where the file cannot be made, it is standard error all the same.
    """
    path = directory / LAST_WORDS_NAME
    try:
        words = read_file(path, _MAX_BYTES).decode(errors="replace").split() if is_there(path, follows=False) else []
        if words:
            log.error("a fatal error ended the server before, and its tables were looked through: %s", " ".join(words))
        fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except OSError as error:
        log.warning("a fatal error would leave no word for the next start: %s", error)
        yield
        return
    try:
        faulthandler.enable(fd, all_threads=False)
        yield
    finally:
        tell_by_standard_error()
        os.close(fd)
