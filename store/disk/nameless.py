"""Files without a name, which are gone when they are closed or their process ends."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def nameless_file(directory: Path, prefix: str) -> Iterator[io.FileIO]:
    """A file in `directory` to be written and read; it has `prefix` for a moment where a file must have a name first.

    Raises OSError.
    """
    import tempfile  # few servers ever need it

    with tempfile.TemporaryFile(dir=directory, prefix=prefix, buffering=0) as file:
        yield file
