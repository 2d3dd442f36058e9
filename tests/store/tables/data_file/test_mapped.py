from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import NoReturn

import pytest

from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.data_file import mapped
from riverbed.store.tables.environment import Tables
from riverbed.store.wire import find_keys


def found(tables: Tables, commit_no: int, keys: list[bytes]) -> bytes:
    return find_keys(tables.committed_pages(commit_no), commit_no, b"entries", keys)


def test_keys_are_found_as_the_last_commit_has_left_them_while_the_file_grows(tmp_path: Path) -> None:
    tables = Tables(tmp_path, 1 << 30)
    handle, data = tables.handles["entries"], tmp_path / STATE_DIRECTORY / DATA_NAME
    keys = [b"%08d" % number for number in range(5000)]
    sizes = [data.stat().st_size]
    for count in (10, 200, 5000):
        txn = tables.begin()
        for key in keys[:count]:
            txn.put(key, b"row" * 10, db=handle)
        txn.commit()
        sizes.append(data.stat().st_size)
        txn = tables.begin()
        txn.delete(keys[0], db=handle)
        assert found(tables, txn.id() - 1, keys) == bytes([n < count for n in range(5000)])
        txn.abort()
    assert sizes[-1] > 3 * sizes[0]
    tables.close()


def test_keys_are_in_doubt_where_the_file_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "planted")

    tables = Tables(tmp_path, 1 << 30)
    with tables.begin() as txn:
        txn.put(b"key", b"row", db=tables.handles["entries"])
        commit_no = txn.id()
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", fail)
        assert found(tables, commit_no, [b"key"]) == b"\0"
    with tables.begin() as txn:
        txn.put(b"other", b"row", db=tables.handles["entries"])
        commit_no = txn.id()
    assert found(tables, commit_no, [b"key", b"other", b"more"]) == b"\1\1\0"
    tables.close()


def test_another_file_at_its_path_is_never_read_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"own" * 4096)
    pages = mapped.MappedFile(path)
    assert pages.is_at_its_path
    path.rename(tmp_path / "moved")
    assert not pages.is_at_its_path
    path.write_bytes(b"another's" * 8192)
    assert not pages.is_at_its_path
    assert bytes(pages.pages(1)) == b"own" * 4096
    pages.close()
    pages.close()


def test_a_large_file_is_mapped_again_only_when_it_has_grown_much(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(mapped._LARGE + 4096)
    pages = mapped.MappedFile(path)
    sizes = []
    for commit_no, grown in enumerate((0, 4096, 4096, mapped._LARGE // mapped._GROWN)):
        os.truncate(path, path.stat().st_size + grown)
        sizes.append(len(pages.pages(commit_no)))
        os.truncate(path, path.stat().st_size + 4096)
        assert len(pages.pages(commit_no)) == sizes[-1]  # behind the same commit nothing is looked for
    assert sizes[0] == sizes[1] == sizes[2] == mapped._LARGE + 4096
    assert sizes[3] == path.stat().st_size - 4096
    pages.close()
