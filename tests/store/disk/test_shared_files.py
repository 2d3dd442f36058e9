from __future__ import annotations

import os
from pathlib import Path

from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.removal import close_file
from riverbed.store.disk.shared_files import SharedFiles


def test_the_last_reader_closes_a_file_that_was_deleted_without_waiting_for_the_disk(tmp_path: Path) -> None:
    """A replica that has read all of a base of gigabytes, or goes, ends the file in the turn of the loop."""
    closed: list[int] = []

    class Files(OsFiles):
        def close_deleted(self, fd: int, /) -> None:
            closed.append(fd)
            close_file(fd)

    shared = SharedFiles(Files())
    path = tmp_path / "file"
    path.write_bytes(b"x")
    first, second = shared.open(path), shared.open(path)
    assert first == second
    path.unlink()
    shared.close(first)
    assert closed == []
    assert os.pread(second, 1, 0) == b"x"
    shared.close(second)
    assert closed == [second]
