"""Every byte of a log and of its manifest counts: whichever is another one, or missing, the check says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.store.check import Check
from riverbed.store.check.findings import Meta
from riverbed.store.check.log import LogCheck
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.progress import ignore
from riverbed.store.rewrite.log_from_tables import rebuild_log
from tests.support.store.stores import Store, begin_file

# One bit, the case of a letter, every bit.
FLIPS = (0x01, 0x20, 0xFF)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store whose log has a base, two incrs, two databases, a transaction and an extension."""
    directory = tmp_path_factory.mktemp("small")
    store = Store(directory)
    store.fill(b"s", 2)
    store.deliver(b"s", 1)
    store.checkpoint()
    store.engine.close()
    shutil.rmtree(directory / LOG_DIRECTORY)
    rebuild_log(directory, now_ms=1)
    store.open()
    store.add(b"t", "1-0", words=(b"f", b"a\r\n#CK:crc32c=00000000;len=1;off=9;t=1\r\nb"), db=2)
    store.commit()
    begin_file(store.engine)
    store.run("XADD", "u", "IDMP", "p", "i", "*", "f", "v")
    store.commit()
    store.add(b"s", "10-0", "11-0")
    store.checkpoint()
    store.engine.close()
    return directory


@pytest.fixture(scope="module")
def meta(small: Path) -> Meta:
    check = Check(small)
    assert list(check.violations()) == []
    assert check.meta is not None
    assert len(check.log.parts) == 3
    return check.meta


@pytest.fixture
def home(small: Path, tmp_path: Path) -> Path:
    """A copy of the log."""
    return Path(shutil.copytree(small / LOG_DIRECTORY, tmp_path / LOG_DIRECTORY))


def is_found(home: Path, meta: Meta | None) -> bool:
    """Whether the check says anything, a torn tail included when there are no tables that tell it from damage."""
    check = LogCheck(home, OsFiles(), lambda: True, ignore)
    found = list(check.violations(meta))
    assert all(violation.file is not None or violation.table == "meta" for violation in found)
    return bool(found) or (meta is None and check.torn_tail is not None)


def flipped(path: Path) -> Iterator[tuple[int, int]]:
    """Change each byte of a file in turn, and put it back."""
    sound = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(sound):
            for mask in FLIPS:
                file.seek(at)
                file.write(bytes([byte ^ mask]))
                yield at, mask
            file.seek(at)
            file.write(bytes([byte]))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_byte_of_the_log_that_is_another_one_is_found(home: Path, meta: Meta, number: int) -> None:
    log = sorted(home.glob("*.aof"))[number]
    assert not is_found(home, meta) and not is_found(home, None)
    missed = [(at, mask) for at, mask in flipped(log) if not (is_found(home, meta) and is_found(home, None))]
    assert missed == []


def test_any_byte_of_the_manifest_that_is_another_one_is_found(home: Path, meta: Meta) -> None:
    manifest = home / LOG_MANIFEST
    assert [place for place in flipped(manifest) if not (is_found(home, meta) and is_found(home, None))] == []


def test_a_manifest_that_is_cut_anywhere_is_found(home: Path, meta: Meta) -> None:
    manifest = home / LOG_MANIFEST
    data = manifest.read_bytes()
    missed = []
    for size in range(len(data)):
        manifest.write_bytes(data[:size])
        if not (is_found(home, meta) and is_found(home, None)):
            missed.append(size)
    assert missed == []


def test_a_log_that_is_cut_anywhere_is_found(home: Path, meta: Meta) -> None:
    for log in home.glob("*.aof"):
        data = log.read_bytes()
        for size in range(len(data)):
            log.write_bytes(data[:size])
            assert is_found(home, meta), size
        log.write_bytes(data)


def test_a_lost_file_is_found(home: Path, meta: Meta) -> None:
    for path in list(home.iterdir()):
        aside = path.rename(home.parent / "aside")
        assert is_found(home, meta), path
        assert is_found(home, None), path
        aside.rename(path)


def test_files_of_a_log_in_another_order_are_found(home: Path, meta: Meta) -> None:
    first, second = sorted(home.glob("*.incr.aof"))
    aside = first.rename(home / "aside")
    second.rename(first)
    aside.rename(second)
    assert is_found(home, meta)
    assert is_found(home, None)


def test_batches_that_are_there_twice_are_found(home: Path) -> None:
    last = max(home.glob("*.incr.aof"))
    last.write_bytes(2 * last.read_bytes())
    assert is_found(home, None)


def test_a_torn_tail_is_told_apart_from_damage(home: Path, meta: Meta) -> None:
    last = max(home.glob("*.incr.aof"))
    with last.open("ab") as file:
        file.write(b"*3\r\n$4\r\nXADD")
    check = LogCheck(home, OsFiles(), lambda: True, ignore)
    assert list(check.violations(meta)) == []
    assert check.torn_tail is not None
    assert (check.torn_tail.file, check.torn_tail.byte_count) == (str(last), 12)


def test_what_a_running_server_is_writing_is_no_torn_tail(home: Path, meta: Meta) -> None:
    last = max(home.glob("*.incr.aof"))
    with last.open("ab") as file:
        file.write(b"*3\r\n$4\r\nXADD")
    with lock_directory(home.parent):
        check = Check(home.parent)
        assert list(check.violations()) == []
        assert check.torn_tail is None
        assert check.was_in_use


def test_a_sound_directory_is_not_even_locked_for_a_moment(small: Path) -> None:
    check = Check(small)
    with lock_directory(small):
        assert list(check.violations()) == []
    assert not check.was_in_use


def test_damage_is_damage_beside_a_running_server_as_well(home: Path) -> None:
    first = min(home.glob("*.incr.aof"))
    data = bytearray(first.read_bytes())
    data[5] ^= 1
    first.write_bytes(data)
    with lock_directory(home.parent):
        (found,) = Check(home.parent).violations()
    assert (found.table, found.file) == ("log", str(first))
