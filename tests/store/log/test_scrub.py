from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.log import scrub as module
from riverbed.store.log.append_log import Log
from riverbed.store.log.scrub import STEP_BYTES, scrub, scrubbed_files, scrubbed_part
from tests.support.store.stores import Store

LOOKS_LIKE_ONE = b"x\r\n#CK:crc32c=00000000;len=44;off=67;t=1700000000000\r\n"


def filled(store: Store) -> Path:
    """A store whose log has short batches, one longer than two steps, and values that look like annotations."""
    for number in range(1, 60):
        store.add(b"s", f"{number}-0", words=(b"f", LOOKS_LIKE_ONE * (number % 3)))
        store.commit()
    store.add(b"s", "1000-0", words=(b"f", bytes(2 * STEP_BYTES)))
    store.add(b"s", "1001-0", words=(b"f", LOOKS_LIKE_ONE))
    store.commit()
    store.add(b"s", "1002-0", words=(b"f", b"v"))
    store.commit()
    (path,) = (store.directory / LOG_DIRECTORY).glob("*.incr.aof")
    return path


def scrubbed(log: Log) -> int:
    files = OsFiles()
    return sum(size for file in scrubbed_files(log) for size in scrub(scrubbed_part(log, file, files), files))


def test_a_sound_log_is_read_whole(store: Store) -> None:
    path = filled(store)
    assert scrubbed(store.engine.log) == path.stat().st_size


@pytest.mark.parametrize("step", [STEP_BYTES, 512])
def test_every_flipped_bit_of_a_log_is_found(store: Store, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", step)
    path = filled(store)
    sound = path.read_bytes()
    long_at = sound.index(bytes(1000))
    places = [*range(0, long_at, 7), long_at + 5000, *range(len(sound) - 600, len(sound))]
    for number, at in enumerate(places):
        data = bytearray(sound)
        data[at] ^= 1 << number % 8
        path.write_bytes(data)
        with pytest.raises(CorruptionError) as found:
            scrubbed(store.engine.log)
        assert found.value.file == str(path)
        assert found.value.offset is not None
    path.write_bytes(sound)
    scrubbed(store.engine.log)


def test_what_is_written_meanwhile_is_left_to_the_next_time(store: Store) -> None:
    path = filled(store)
    (file,) = scrubbed_files(store.engine.log)
    part = scrubbed_part(store.engine.log, file, OsFiles())
    store.add(b"s", "2000-0")
    store.commit()
    with path.open("ab") as log:
        log.write(b"half a batch")
    assert sum(scrub(part, OsFiles())) > 0
    with pytest.raises(CorruptionError, match="no annotation ends before this byte"):
        sum(scrub(replace(part, size=path.stat().st_size), OsFiles()))


def test_a_file_is_closed_as_one_that_may_have_been_deleted_meanwhile(store: Store) -> None:
    """The last to close a deleted file frees it, and others wait for the disk."""
    closed: list[int] = []

    class Files(OsFiles):
        def close_deleted(self, fd: int, /) -> None:
            closed.append(fd)
            super().close_deleted(fd)

    filled(store)
    (file,) = scrubbed_files(store.engine.log)
    files = Files()
    assert sum(scrub(scrubbed_part(store.engine.log, file, files), files)) > 0
    assert len(closed) == 1
