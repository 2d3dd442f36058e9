from __future__ import annotations

from pathlib import Path

from riverbed.store.errors import Refusal
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.stores import Store


def test_writes_are_refused_before_the_disk_is_full_and_allowed_when_it_is_well_free(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = Store(tmp_path, files=files, reserve_bytes=1000)
    for free, refusal in (
        (1001, None),
        (999, Refusal.DISK_NEARLY_FULL),
        (1100, Refusal.DISK_NEARLY_FULL),
        (1250, None),
        (1100, None),
    ):
        files.free = free
        store.engine.check_space()
        assert store.engine.refusal is refusal, free
    files.free = None
    store.engine.close()
