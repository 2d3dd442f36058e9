"""Tells whether another machine has the file system of a path, where what Linux says of locks and open files is little.

LMDB forbids such file systems: it shares memory between processes through its files.  A client of NFS or SMB refuses a
lease, as if the file were being written, whenever the server has not delegated the file to it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from riverbed.store.disk.real_files import is_there

_MOUNTS: Final = Path("/proc/self/mountinfo")
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "afs", "ceph", "fuse.sshfs", "fuse.glusterfs"})


def remote_type(path: Path) -> str | None:
    """The type of the file system of `path`, such as `nfs4`, or of the folder in which `path` is not made yet.

    None for one of this machine, and where the system does not tell.
    """
    try:
        device = (path if is_there(path) else path.parent).stat().st_dev
        mounts = _MOUNTS.read_text(errors="replace")
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        # id, parent, device, root, mount point, options, any number of fields, a hyphen, type, source, options
        about, _, tail = line.partition(" - ")
        if about.split(" ")[2:3] == [number]:
            kind = tail.partition(" ")[0]
            return kind if kind in _REMOTE else None
    return None
