"""Gives files that root makes in a store to the user of its server, as that user could not open them otherwise."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path


def give(made: Path, owner: os.stat_result) -> None:
    """Give `made`, and all that is in it, to the user and group of `owner`.  Raises OSError.

    Does nothing unless the process runs as root: only root may do this.
    """
    if os.geteuid() == 0:
        for path in chain((made,), made.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
