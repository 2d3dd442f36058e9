from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import is_directory, is_there, require_only
from riverbed.store.errors import UnsafeFileError


def test_what_cannot_be_looked_at_is_not_taken_for_missing(tmp_path: Path) -> None:
    file, missing, loop, dangling = (tmp_path / name for name in ("file", "missing", "loop", "dangling"))
    file.touch()
    loop.symlink_to(loop)
    dangling.symlink_to(missing)
    exists = OsFiles().exists
    assert [is_there(path) for path in (tmp_path, file, missing, file / "x", dangling)] == [True, True] + [False] * 3
    assert [is_directory(path) for path in (tmp_path, file, missing, file / "x")] == [True, False, False, False]
    assert [exists(path) for path in (file, missing, file / "x", dangling, loop)] == [True, False, False, True, True]
    for path, number in ((loop / "x", errno.ELOOP), (tmp_path / ("x" * 300), errno.ENAMETOOLONG)):
        for look in (is_there, is_directory, exists):
            with pytest.raises(OSError, match=r"x") as caught:
                look(path)
            assert caught.value.errno == number


def test_what_may_be_deleted_holds_nothing_of_others(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    require_only(ours, ["state"])
    (ours / "state").mkdir(parents=True)
    require_only(ours, ["state", "damaged"])
    (ours / "letter.txt").touch()
    with pytest.raises(UnsafeFileError, match=r"letter\.txt is none of Riverbed's files"):
        require_only(ours, ["state", "damaged"])
    (tmp_path / "link").symlink_to(ours)
    with pytest.raises(UnsafeFileError, match="is a symbolic link"):
        require_only(tmp_path / "link", ["state", "letter.txt"])


def test_a_directory_that_is_deleted_meanwhile_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread deletes what the last repair has left, and the next one looks whether it may."""
    (tmp_path / "repair").mkdir()

    def gone(path: Path) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", gone)
    require_only(tmp_path / "repair", ["state"])
