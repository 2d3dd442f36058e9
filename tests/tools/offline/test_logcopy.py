"""A log that is copied while it is executed: the same bytes as copied at once, and no failure is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.store.disk.copying import GrowingCopy
from riverbed.store.format.log_lines import encode_annotation
from riverbed.tools.offline import logcopy
from tests.conftest import broken_invariants
from tests.support.in_process import HandClock, Product
from tests.support.replays import LOG, encoded, file_of, opened, refused, replay, small_log, xadd
from tests.support.store.stores import begin_file


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The small log, in files of three batches."""
    clock = HandClock()
    product = Product(tmp_path / "log", clock)
    for number in range(1, 11):
        clock.now_ms += 1
        product.run(*xadd(number))
        if number % 3 == 0:
            begin_file(product.engine)
    product.close()
    return tmp_path / "log"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is copied after each batch: the file, and up to which byte."""
    found: list[tuple[str, int]] = []
    extend = GrowingCopy.extend

    def noted(copy: GrowingCopy, end: int) -> None:
        found.append((copy._source.name, end))
        extend(copy, end)

    monkeypatch.setattr(GrowingCopy, "extend", noted)
    monkeypatch.setattr(logcopy, "_STEP_BYTES", 1)
    return found


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / LOG).glob("*.aof"))}


def test_files_are_copied_batch_by_batch_while_they_are_executed(
    log: Path, tmp_path: Path, steps: list[tuple[str, int]]
) -> None:
    assert replay(log, tmp_path / "new")["copied"]
    assert contents(tmp_path / "new") == contents(log)
    assert len(contents(log)) == 4
    assert len(steps) > len(contents(log)) * 2
    assert broken_invariants(tmp_path / "new") == []
    assert opened(tmp_path / "new", 0) == opened(log, 0)


def test_nothing_beyond_the_moment_is_copied(log: Path, tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    whole = contents(log)
    report = replay(log, tmp_path / "new", "--until", "@1700000000005")
    copied = contents(tmp_path / "new")
    assert report["entries"] == 5
    assert list(copied) == list(whole)[:2]
    assert all(whole[name].startswith(data) for name, data in copied.items())
    assert {name for name, _ in steps} == copied.keys()
    assert max(end for name, end in steps if name == list(copied)[1]) == len(copied[list(copied)[1]])
    assert len(copied[list(copied)[1]]) < len(whole[list(copied)[1]])


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("step", [1, 5, 10])
def test_a_copy_that_fails_once_ends_the_replay_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    log = small_log(tmp_path / "small")  # of ten batches
    extend = GrowingCopy.extend
    begun: list[int] = []

    def full(copy: GrowingCopy, end: int) -> None:
        begun.append(end)
        if len(begun) == step:
            raise OSError(28, "No space left on device")
        extend(copy, end)

    monkeypatch.setattr(GrowingCopy, "extend", full)
    assert "No space left on device" in refused(log, tmp_path / "new")
    assert len(begun) == step  # nothing was copied behind it
    assert file_of(log).exists()


def test_a_base_alone_that_ends_in_a_torn_batch_is_listed_as_long_as_it_is(tmp_path: Path) -> None:
    state = encoded(("SELECT", "0")) + encoded(xadd(1))
    more = encoded(xadd(2))
    source = tmp_path / "appendonly.aof.1.base.aof"
    sound = state + encode_annotation(state, 0, 1)
    source.write_bytes(sound + more)
    report = replay(source, tmp_path / "new", status=1)
    assert (report["entries"], report["torn_tail"]["bytes"]) == (1, len(more))
    assert contents(tmp_path / "new")[source.name] == sound
    assert broken_invariants(tmp_path / "new") == []
