"""What root makes in a store whose server runs as another user goes to that user, who could not open it otherwise."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path


def give(made: Path, owner: os.stat_result) -> None:
    """Give `made`, and all that is in it, to the user and group of `owner`.  Raises OSError.

    Does nothing unless the caller is root, who alone may do so.
    """
    if os.geteuid() == 0:
        for path in chain((made,), made.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
