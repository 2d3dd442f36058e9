"""The pages of LMDB's file, checked without LMDB: what it would fall over must be found before it is asked anything.

py-lmdb's verifier reads the file as bytes.  It walks every tree from the newer meta page on and holds it to all that
LMDB takes for granted: pages say their own numbers and are used once, keys ascend, counters are right, and what is in
use and what is free are all there is.  1.5 s for a million entries.

LMDB keeps no checksums: a byte that was flipped within a row is a matter of the rows' own promises.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lmdb import verify

from riverbed.store.check.findings import Violation

# A file that is being written may grow between two looks at it.
_TRIES: Final = 5
_WAIT_S: Final = 0.1
_PAGE: Final = re.compile(r"page (\d+)")
_PAGE_SIZE_AT: Final = 16 + 24  # within the first page: the header, then the meta page up to the free list's tree


def check_pages(data: Path, is_stable: Callable[[], bool], waiting: Callable[[], None]) -> Iterator[Violation]:
    """What is wrong with the pages of the file `data`; `waiting` is called now and then meanwhile.

    While `is_stable()` is false a server may be writing it: then it takes several looks to be sure.  The caller holds a
    read transaction by the time it says so, so that no page is used again that was in use.  Raises OSError.
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


def _look(data: Path, waiting: Callable[[], None]) -> list[str]:
    """The verifier is one long call, so it runs in a thread."""
    found: list[str] = []
    failures: list[OSError] = []

    def look() -> None:
        try:
            found.extend(str(reason) for reason in verify.verify(str(data)))
        except (verify.VerifyError, RecursionError) as error:
            found.append(str(error))
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
