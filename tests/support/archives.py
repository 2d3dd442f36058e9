"""Unpacks the archives of earlier versions."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, into: Path) -> None:
    """Unpack what `archive` holds, which may be nothing but files and folders below `into`."""
    with tarfile.open(archive) as files:
        # CPython before 3.11.4 has none, and what is unpacked here is our own
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(into)
