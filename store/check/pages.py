"""Check the pages of LMDB's file: damage that would crash LMDB must be found before LMDB opens the file."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from riverbed.store.check.findings import Violation
from riverbed.store.errors import CorruptionError
from riverbed.store.progress import ignore
from riverbed.store.tables.data_file.pages import walk_pages

# A file that is being written may grow between two reads of it.
_TRIES: Final = 5
_WAIT_S: Final = 0.1
_PAGE: Final = re.compile(r"page (\d+)")
_PAGE_SIZE_AT: Final = 16 + 24  # within the first page: the header, then the meta page up to the free list's tree


def check_pages(data: Path, is_stable: Callable[[], bool], waiting: Callable[[], None]) -> Iterator[Violation]:
    """Yield what is wrong with the pages of the file `data`; `waiting` is called now and then meanwhile.

    While `is_stable()` is false a server may be writing the file, and several tries are needed to be sure.  A caller
    whose `is_stable` is false holds a read transaction, so that LMDB reuses no page of it.  Raises OSError.
    """
    found = _look(data, waiting)
    tries = 1
    while found and not is_stable() and tries < _TRIES:
        found = _look(data, waiting)
        tries += 1
    page_bytes = _page_bytes(data)
    for reason in found:
        page = _PAGE.search(reason)
        offset = None if page is None else min(int(page[1]) * page_bytes, (1 << 63) - 1)
        yield Violation("lmdb", "", reason, str(data), offset)


def require_sound_pages(data: Path, waiting: Callable[[], None] = ignore) -> None:
    """Raise CorruptionError when LMDB may crash on a page of a snapshot's file.

    Checksums find damage.  They do not find what was forged together with the manifest.
    """
    for found in check_pages(data, lambda: True, waiting):
        raise CorruptionError(str(data), found.offset, f"a page is damaged: {found.reason}")


def _look(data: Path, waiting: Callable[[], None]) -> list[str]:
    """Walk over the pages in a thread, as it is one long call."""
    found: list[str] = []
    failures: list[OSError] = []

    def look() -> None:
        try:
            found.extend(walk_pages(data))
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=look, name="pages", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_WAIT_S)
        waiting()
    if failures:
        raise failures[0]
    return found


def _page_bytes(data: Path) -> int:
    with data.open("rb") as file:
        file.seek(_PAGE_SIZE_AT)
        return int.from_bytes(file.read(4), "little")
