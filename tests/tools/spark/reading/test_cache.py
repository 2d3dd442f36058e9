from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.reading import cache as cache_module
from riverbed.tools.spark.reading.cache import Cache


def put(cache: Cache, name: str, size: int = 100, age_s: float = 0) -> Path:
    """An entry of `size` bytes that was used `age_s` ago, and that nobody holds."""
    path = cache.get(name, lambda working: _write(working / "file", size))
    let_go()
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def _write(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))


def let_go() -> None:
    """As when the process that has asked for entries ends."""
    while cache_module._held:
        os.close(cache_module._held.popitem()[1])


def test_an_entry_is_made_once_however_many_ask_for_it(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 1000)
    made: list[Path] = []
    barrier = threading.Barrier(8)

    def make(working: Path) -> None:
        made.append(working)
        (working / "file").write_text("whole")

    def ask() -> None:
        barrier.wait()
        assert (cache.get("x", make) / "file").read_text() == "whole"

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".riverbed-")] == []


def test_what_is_not_whole_any_more_is_made_again(tmp_path: Path) -> None:
    """Its files, or that it has any: others delete old files where temporary ones are."""
    cache = Cache(str(tmp_path), 1000)

    def get() -> Path:
        return cache.get("x", lambda working: _write(working / "file", 10), lambda path: (path / "file").exists())

    path = get()
    inode = (path / "file").stat().st_ino
    assert (get() / "file").stat().st_ino == inode
    (path / "file").unlink()
    assert (get() / "file").stat().st_size == 10
    let_go()
    assert sorted(entry.name for entry in tmp_path.iterdir() if not entry.name.startswith(".lock")) == [path.name]


def test_what_cannot_be_made_leaves_nothing_and_is_made_the_next_time(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 1000)

    def fail(working: Path) -> None:
        (working / "half").touch()
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        cache.get("x", fail)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".lock-")] == []
    assert put(cache, "x").exists()


def test_the_least_recently_used_go_when_all_are_too_large(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 250)
    old = put(cache, "old", age_s=5000)
    older = put(cache, "older", age_s=9000)
    new = put(cache, "new", age_s=700)
    assert [path.exists() for path in (older, old, new)] == [False, True, True]

    last = put(cache, "last")
    assert [path.exists() for path in (old, new, last)] == [False, True, True]
    assert put(cache, "older", age_s=9000).exists()


def test_what_is_held_or_was_used_a_moment_ago_stays(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 100)
    recent, held, idle = put(cache, "recent"), put(cache, "held"), put(cache, "idle", age_s=800)
    fd = os.open(held, os.O_RDONLY)  # another process's
    fcntl.flock(fd, fcntl.LOCK_SH)
    os.utime(held, (time.time() - 9000,) * 2)

    cache.evict()
    assert [path.exists() for path in (recent, held, idle)] == [True, True, False]
    os.close(fd)
    cache.evict()
    assert not held.exists()


def test_what_this_process_asked_for_is_not_taken_from_under_it(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 0)
    path = cache.get("x", lambda working: _write(working / "file", 10))
    os.utime(path, (time.time() - 9000,) * 2)

    cache.evict()
    assert path.exists()
    let_go()
    cache.evict()
    assert not cache.hold(path)


def test_what_is_only_a_mark_goes_after_a_month_and_what_a_kill_has_left_after_a_day(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 1000)
    month, week = put(cache, "month", 0, age_s=31 * 86_400), put(cache, "week", 0, age_s=7 * 86_400)
    left, at_work = (tmp_path / f".riverbed-{number:012x}" for number in range(2))
    for path in (left, at_work):
        path.mkdir()
    os.utime(left, (time.time() - 2 * 86_400,) * 2)

    cache.evict()
    assert [path.exists() for path in (month, week, left, at_work)] == [False, True, False, True]


def test_entries_are_for_their_owner_alone_in_a_folder_for_all(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert put(Cache(str(tmp_path), 1000), "entry").stat().st_mode & 0o777 == 0o700


def test_what_is_not_of_the_cache_stays(tmp_path: Path) -> None:
    names = ("thesis", "0" * 32, "riverbed-data", ".riverbed-mine", ".temp-0123456789ab")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        os.utime(tmp_path / name, (0, 0))
    cache = Cache(str(tmp_path), 0)
    entry = put(cache, "entry", age_s=5000)

    cache.evict()
    assert not entry.exists()
    assert [name for name in names if not (tmp_path / name / "file").exists()] == []


def test_a_link_that_another_user_may_have_made_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / f"riverbed-spark-{os.getuid()}").symlink_to("home")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SourceError, match="belongs to another user; choose another cacheDirectory"):
        Cache(None, 0)


def test_an_entry_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(str(tmp_path), 1000)
    put(cache, "entry")
    owner = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    with pytest.raises(SourceError, match="belongs to another user; choose another cacheDirectory"):
        cache.get("entry", lambda working: None)


def test_a_path_outside_of_the_cache_is_left_alone(tmp_path: Path) -> None:
    let_go()  # of what tests before this one hold
    other = tmp_path / "other"
    other.mkdir()
    used = other.stat().st_mtime_ns

    assert Cache(str(tmp_path / "cache"), 0).hold(other)
    assert Cache(str(tmp_path), 0).hold(other)  # in it, and not of it
    assert other.stat().st_mtime_ns == used
    assert not cache_module._held


def test_marks_have_all_entries_looked_at_only_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(str(tmp_path), 0)
    looks: list[Path | None] = []
    monkeypatch.setattr(Cache, "evict", lambda self, keep=None: looks.append(keep))
    for number in range(1024):
        cache.get(f"mark {number}", lambda working: None)
    assert 0 < len(looks) < 20

    looks.clear()
    path = cache.get("entry", lambda working: (working / "file").touch())
    assert looks == [path]
