from __future__ import annotations

import os
from pathlib import Path

import pytest

from riverbed.store.disk.real_files import require_only
from riverbed.store.errors import UnsafeFileError


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
