"""Has new files of a store keep the user, the group and the mode of others, so that the same programs can read them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path


def give(made: Path, owner: os.stat_result) -> None:
    """Give `made`, and all that is in it, to the user and group of `owner`.  Raises OSError.

    Does nothing unless the process runs as root: only root may do this.
    """
    if os.geteuid() == 0:
        with _as_far_as_allowed():
            for path in chain(made.rglob("*"), (made,)):  # last what lets its new owner in
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def hand_over(fd: int, folder: Path) -> None:
    """Give what root has made in another user's `folder` to that user, whose server has to read it.

    Does nothing for what is another's, or has more names, and unless the process runs as root.  Raises OSError.
    """
    if os.geteuid() == 0:
        made, owner = os.fstat(fd), folder.stat()
        if made.st_uid == 0 != owner.st_uid and (stat.S_ISDIR(made.st_mode) or made.st_nlink == 1):
            with _as_far_as_allowed():
                os.fchown(fd, owner.st_uid, owner.st_gid)


@contextlib.contextmanager
def _as_far_as_allowed() -> Iterator[None]:
    """A container may forbid root to give files away, or not know the user."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise


def give_access(made: Path, owner: os.stat_result) -> None:
    """Give `made` the user, group and mode of `owner`, as far as this process may."""
    with contextlib.suppress(PermissionError):
        os.chown(made, owner.st_uid, owner.st_gid)
        made.chmod(stat.S_IMODE(owner.st_mode))


def keep_access(made: Path, old: Path) -> None:
    """`give_access` of `old` to the directory `made` that takes its place, and of its files to those of their names."""
    with contextlib.suppress(FileNotFoundError):
        give_access(made, old.stat())
        for path in made.iterdir():
            with contextlib.suppress(FileNotFoundError):
                give_access(path, (old / path.name).stat())
