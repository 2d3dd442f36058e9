from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.store.errors import Refusal
from riverbed.store.options import map_for
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


def test_rows_near_the_quota_are_told_from_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = Store(tmp_path, files=files, reserve_bytes=10_000)
    store.fill(b"s", 5000)
    store.checkpoint()
    used = store.txn.tables.used_bytes(store.txn.lmdb)
    for quota, free, refusal in (
        (used + 10_001, 1 << 30, None),
        (used + 9_999, 1 << 30, Refusal.MAP_NEARLY_FULL),
        (used + 12_499, 1 << 30, Refusal.MAP_NEARLY_FULL),
        (used + 12_499, 9_999, Refusal.DISK_NEARLY_FULL),
        (used - 1, 0, Refusal.DISK_NEARLY_FULL),
        (used - 1, 12_499, Refusal.DISK_NEARLY_FULL),
        (used - 1, 12_500, Refusal.MAP_NEARLY_FULL),
        (used + 1_000_000, 12_499, Refusal.DISK_NEARLY_FULL),
        (used + 12_500, 12_500, None),
    ):
        store.options.quota_bytes, files.free = quota, free
        store.engine.check_space()
        assert store.engine.refusal is refusal, (quota - used, free)
    files.free = None
    for logged, refusal in ((1000, None), (1001, Refusal.MAP_NEARLY_FULL)):  # it is in no table yet
        store.options.quota_bytes, store.engine.space.uncommitted_bytes = used + 11_000, logged
        store.engine.check_space()
        assert store.engine.refusal is refusal, logged
    store.options.quota_bytes = 40_000  # an eighth of it is the reserve then
    assert store.engine.space.reserve_bytes == 5_000
    files.free = None
    store.engine.close()


@pytest.mark.parametrize(
    ("quota", "mapped"),
    [
        (16 << 20, (64 << 20) + (256 << 20)),
        (1 << 30, (4 << 30) + (256 << 20)),
        (1 << 39, 1 << 40),
        (1 << 40, 1 << 40),
        (1 << 44, 1 << 44),
    ],
)
def test_the_file_has_room_beyond_the_rows_up_to_a_terabyte(quota: int, mapped: int) -> None:
    assert map_for(quota) == mapped
