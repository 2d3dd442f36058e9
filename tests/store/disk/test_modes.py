"""What a store makes is for its user alone, whatever the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.store.tables.data_file.power_loss import MARK_NAME
from tests.support.store.stores import Store, begin_file


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
def test_files_and_directories_of_a_store_are_closed_to_other_users(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.fill(b"s", 10)
    store.engine.checkpoint()
    store.commit()
    begin_file(store.engine)
    # before the end as well: it deletes the mark of tables that are in use
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "store").rglob("*")}
    assert tmp_path / "store" / "state" / MARK_NAME in modes
    assert {path.name: oct(mode) for path, mode in modes.items() if mode not in (0o600, 0o700)} == {}
    store.engine.close()
    made = [tmp_path / "store", *(tmp_path / "store").rglob("*")]
    assert len(made) > 5
    assert {path: oct(path.stat().st_mode & 0o777) for path in made} == {
        path: "0o700" if path.is_dir() else "0o600" for path in made
    }
