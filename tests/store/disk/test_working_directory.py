from __future__ import annotations

import fcntl
import os
from pathlib import Path

from riverbed.store.disk.working_directory import clear_leftovers, working_directory


def test_a_directory_somebody_works_in_is_not_cleared_away(tmp_path: Path) -> None:
    working, dead, other = tmp_path / ".work-1", tmp_path / ".work-2", tmp_path / "other"
    for path in (working, dead, other):
        path.mkdir()
        (path / "file").write_bytes(b"x")
    fd = os.open(working, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert clear_leftovers(tmp_path, ".work-") == 1
    assert {path.name for path in tmp_path.iterdir()} == {working.name, other.name}
    os.close(fd)


def test_what_cannot_be_cleared_away_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".work-file").touch()
    with working_directory(tmp_path, ".work-") as path:
        assert path.is_dir()
        assert clear_leftovers(tmp_path, ".work-") == 0
    assert [path.name for path in tmp_path.iterdir()] == [".work-file"]


def test_what_has_got_another_name_stays(tmp_path: Path) -> None:
    with working_directory(tmp_path, ".work-") as path:
        path.rename(tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
