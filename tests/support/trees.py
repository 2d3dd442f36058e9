"""What a directory holds, to the byte: to see that it was left alone.

before = tree(directory)
...
assert tree(directory) == before
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

# kind and permissions, then what is in it: a hash, the target of a link, or nothing
Node = tuple[str, str]


def tree(directory: Path) -> dict[str, Node]:
    """Every path below `directory`, `.` among them, with what is there.  Follows no link and opens files alone."""
    found = {}
    for parent, directories, files in os.walk(directory):
        for name in (".", *directories, *files) if Path(parent) == directory else (*directories, *files):
            path = Path(parent, name)
            found[str(path.relative_to(directory))] = _node(path)
    return found


def changes(before: dict[str, Node], after: dict[str, Node]) -> list[str]:
    """The paths that were added, removed or changed, for people."""
    told = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            what = "added" if path not in before else "removed" if path not in after else "changed"
            told.append(f"{what}: {path}")
    return told


def _node(path: Path) -> Node:
    mode = path.lstat().st_mode
    contents = ""
    if stat.S_ISREG(mode):
        contents = hashlib.sha256(path.read_bytes()).hexdigest()
    elif stat.S_ISLNK(mode):
        contents = os.readlink(path)
    return stat.filemode(mode), contents
