"""Walks over all pages of LMDB's file without LMDB, which damaged pages may crash.

py-lmdb's verifier reads the file as bytes.  It walks every tree from the newer meta page on, and checks all that LMDB
assumes: each page holds its own number and is used once, keys ascend, counters are right, and every page is either in
use or free.  Leaves of plain rows, which nearly all pages are, `store/wire` looks at in its place: a million entries
take 0.2 s instead of 1.5.  What is not simple there, also all damage, is left to the verifier.  A value may have more
pages than it needs, which the verifier takes for damage.

LMDB keeps no checksums: only the checks of the rows can find a flipped byte within a row.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Final

import lmdb
from lmdb import verify

from riverbed.store.wire import measure_leaf

# On the insides of this version of the verifier `_Walk` builds.
_IS_KNOWN: Final = lmdb.__version__.startswith("3.0.")
_Verifier: Final[Any] = verify._Verifier if _IS_KNOWN else object


class _Walk(_Verifier):  # type: ignore[misc]  # the verifier has no types
    """The verifier with another look at leaves."""

    def _walk_leaf(self, ctx: dict[str, Any], pgno: int, buf: bytes) -> None:
        is_plain = ctx["key_cmp"] is verify._cmp_lexical and ctx["dup_cmp"] is None
        if is_plain and not self.eng["has_txnid"]:
            found = measure_leaf(buf, ctx["last_key"])
            if found is not None:
                count, ctx["last_key"] = found
                ctx["entries"] += count
                return
        super()._walk_leaf(ctx, pgno, buf)

    def _bigdata(
        self, ctx: dict[str, Any], pgno: int, i: int, buf: bytes, doff: int, dsize: int, want_bytes: bool
    ) -> bytes | None:
        """Look at a value with pages of its own, as many as it has: the verifier demands as many as it needs.

        LMDB leaves a value its pages when a shorter one takes its place in the same transaction.  So it does with the
        lists of free pages of a long transaction.  Other uses of such a page, and wrong counts, are found in any case.
        """
        size = dsize
        place = int.from_bytes(buf[doff : doff + 8], "little")
        first = self.read_page(place) if verify.NUM_METAS <= place < self.next_pgno else None
        if first is not None and not self.eng["has_txnid"]:
            count = self._pg_pages(first, 0)
            room = count * self.psize - self.hdrsz
            if room - dsize >= self.psize and place + count <= self.next_pgno:
                size = room
        found: bytes | None = super()._bigdata(ctx, pgno, i, buf, doff, size, want_bytes and size == dsize)
        if want_bytes and size != dsize:  # read no more than it needs: a damaged count may be that of all pages
            extent = self.read_extent(place, -(-(self.hdrsz + dsize) // self.psize))
            found = None if extent is None else bytes(extent[self.hdrsz : self.hdrsz + dsize])
        return found


def walk_pages(data: Path) -> list[str]:
    """What is wrong with the pages of the file `data`, or why they could not all be walked over.

    Raises OSError, but not for what the disk cannot read.
    """
    try:
        if not _IS_KNOWN:
            return [str(reason) for reason in verify.verify(str(data))]
        with data.open("rb") as file:
            return [str(reason) for reason in _Walk(file, os.fstat(file.fileno()).st_size).verify()]
    except (verify.VerifyError, RecursionError) as error:
        return [str(error)]
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return [f"the disk cannot read it: {error.strerror}"]
