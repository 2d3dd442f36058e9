"""The files of snapshots in an object store, or on a mounted disk that they are fetched from.

Nothing of it is trusted: no more of a file is read than its snapshot's manifest says, or than a manifest may have, and
of this machine's file systems nothing but plain files is opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from riverbed.store.disk.real_files import open_file
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME
from riverbed.store.snapshot.manifest import MAX_MANIFEST_BYTES, SnapshotManifest, decode_manifest
from riverbed.store.snapshot.reader import TEMPORARY_PREFIX
from riverbed.tools.spark.errors import SourceError

_COPY_BYTES: Final = 1 << 20


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it.  Raises SourceError."""
    from pyarrow import fs

    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:  # pyarrow's errors are both
        raise SourceError(f"cannot read {uri}: {error}") from error
    return filesystem, root.rstrip("/")


def snapshot_folders(filesystem: Any, root: str) -> list[str]:
    """The paths of the snapshots at `root`: itself, or all in it.  Raises SourceError when there is none, OSError."""
    from pyarrow import fs

    if _is_file(filesystem, f"{root}/{MANIFEST_NAME}"):
        return [root]
    found = filesystem.get_file_info(fs.FileSelector(root, recursive=False, allow_not_found=True))
    folders = sorted(info.path for info in found if info.type == fs.FileType.Directory)
    folders = [folder for folder in folders if not folder.rsplit("/", 1)[-1].startswith(TEMPORARY_PREFIX)]
    if isinstance(filesystem, fs.LocalFileSystem):
        folders = [folder for folder in folders if not os.path.islink(folder)]  # it may lead anywhere
    folders = [folder for folder in folders if _is_file(filesystem, f"{folder}/{MANIFEST_NAME}")]
    if not folders:
        raise SourceError(f"{root} is not a snapshot, and there is none in it")
    return folders


def read_manifest(filesystem: Any, folder: str) -> tuple[bytes, SnapshotManifest]:
    """A snapshot's manifest, as it is written and decoded, beside tables of the length that it says.

    Raises StoreError, OSError.
    """
    file = f"{folder}/{MANIFEST_NAME}"
    with _open(filesystem, file) as reader:
        data = bytes(reader.read(MAX_MANIFEST_BYTES + 1))
    manifest = decode_manifest(data, file)
    file, wanted = f"{folder}/{DATA_NAME}", manifest.data_file.size
    size = filesystem.get_file_info(file).size
    if size is None:
        raise CorruptionError(file, None, "the manifest speaks of it, and it is missing")
    if size != wanted:  # readers plan by it
        raise CorruptionError(file, None, f"{size} bytes long; it must be {wanted}")
    return data, manifest


def copy(filesystem: Any, source: str, target: Path, size: int) -> None:
    """Copy a file that is to have `size` bytes; of a longer one a byte more.  Raises StoreError, OSError."""
    left = size + 1
    with _open(filesystem, source) as reader, target.open("xb") as writer:
        while left and (data := reader.read(min(_COPY_BYTES, left))):
            writer.write(data)
            left -= len(data)


def _is_file(filesystem: Any, path: str) -> bool:
    from pyarrow import fs

    return bool(filesystem.get_file_info(path).type == fs.FileType.File)


def _open(filesystem: Any, path: str) -> Any:
    from pyarrow import fs

    if isinstance(filesystem, fs.LocalFileSystem):
        return os.fdopen(open_file(Path(path), os.O_RDONLY), "rb")
    return filesystem.open_input_stream(path)
