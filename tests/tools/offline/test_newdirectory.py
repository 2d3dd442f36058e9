from __future__ import annotations

import os
from pathlib import Path

import pytest

from riverbed.tools.console.console import Failure
from riverbed.tools.offline.newdirectory import left_over, new_directory


def test_directory_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with new_directory(target) as partial:
        (partial / "file").write_text("x")
        assert not target.exists()
    assert (target / "file").read_text() == "x"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_empty_directory_is_replaced_and_leaves_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    with new_directory(target) as partial:
        (partial / "file").touch()
    assert (target / "file").exists()
    assert target.stat().st_mode & 0o777 == 0o700


@pytest.mark.needs_root
def test_empty_directory_of_another_user_leaves_all_to_that_user(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    os.chown(target, 65534, 65534)
    with new_directory(target) as partial:
        (partial / "state").mkdir()
        (partial / "state" / "file").touch()
    assert {path.stat().st_uid for path in (target, *target.rglob("*"))} == {65534}


def test_error_leaves_nothing_behind(tmp_path: Path) -> None:
    def build() -> None:
        with new_directory(tmp_path / "target") as partial:
            (partial / "file").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Failure, match="is not empty"), new_directory(tmp_path):
        pass
    with pytest.raises(Failure, match="file exists"), new_directory(tmp_path / "file"):
        pass
    with new_directory(tmp_path / "link") as partial:
        assert partial.parent == tmp_path
    assert (tmp_path / "nowhere").is_dir()


def test_what_appeared_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    target = tmp_path / "target"

    def build() -> None:
        with new_directory(target):
            target.mkdir()
            (target / "file").touch()

    with pytest.raises(OSError, match="not empty"):
        build()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (target / "file").exists()


def test_mount_point_is_refused_at_once() -> None:
    with pytest.raises(Failure, match="mount point"), new_directory(Path("/")):
        pass


def test_leftovers_of_a_kill_are_named(tmp_path: Path) -> None:
    target = tmp_path / "target"
    left = tmp_path / "target.partial-0123abcd"
    left.mkdir()
    (tmp_path / "other.partial-0123abcd").mkdir()
    assert left_over(target) == [left]
    target.write_text("x")
    with pytest.raises(Failure, match="0123abcd: half made by a command that was killed"), new_directory(target):
        pass
