"""The walk over pages finds what py-lmdb's verifier finds, and looks at leaves natively."""

from __future__ import annotations

import errno
import io
import os
import random
from pathlib import Path

import pytest
from lmdb import verify

from riverbed.store.tables.data_file import pages
from riverbed.store.tables.data_file.pages import walk_pages
from riverbed.store.tables.environment import Tables


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Tables with a tree of three levels, free pages, and rows that have pages of their own."""
    tables = Tables(tmp_path, 1 << 28)
    for first in (0, 1000):
        with tables.env.begin(write=True, db=tables.handles["entries"]) as txn:
            for number in range(first, first + 2000):
                txn.put(b"%08d" % number * 30, b"%d" % first * (2000 if number % 500 == 0 else 1))
    with tables.env.begin(write=True, db=tables.handles["keys"]) as txn:
        txn.put(b"key", b"row")
    tables.close()
    return tables.path / "data.mdb"


def found_by_the_verifier(data: Path) -> list[str]:
    try:
        return [str(reason) for reason in verify.verify(str(data))]
    except verify.VerifyError as error:
        return [str(error)]


def test_leaves_are_looked_at_natively(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def counting(page: bytes, last_key: bytes | None) -> tuple[int, bytes | None] | None:
        found = measure_leaf(page, last_key)
        counts.append(0 if found is None else found[0])
        return found

    measure_leaf = pages.measure_leaf
    monkeypatch.setattr(pages, "measure_leaf", counting)
    assert walk_pages(data) == []
    assert sum(counts) > 2500


def test_any_damage_is_named_as_the_verifier_names_it(data: Path) -> None:
    sound = data.read_bytes()
    rng = random.Random(5)
    damaged = 0
    for _ in range(150):
        contents = bytearray(sound)
        for _ in range(rng.choice([1, 1, 3])):
            start = rng.randrange(2, len(contents) // 4096) * 4096
            contents[start + rng.choice([rng.randrange(4096), rng.randrange(64)])] ^= 1 << rng.randrange(8)
        data.write_bytes(contents)
        found = walk_pages(data)
        assert found == found_by_the_verifier(data)
        damaged += bool(found)
    assert damaged > 50


def test_a_value_may_have_more_pages_than_it_needs(data: Path) -> None:
    tables = Tables(data.parent.parent, 1 << 28)
    with tables.env.begin(write=True, db=tables.handles["keys"]) as txn:
        txn.put(b"long", b"x" * 30_000)
        txn.put(b"long", b"y" * 3000)
    tables.close()
    assert "header mp_pages 8 != OVPAGES(3000)=1" in found_by_the_verifier(data)[0]
    assert walk_pages(data) == []
    contents = bytearray(data.read_bytes())
    begin = contents.index(b"y" * 3000) - 16
    for pages_of_it in (1, 7, 9, 1 << 20):
        contents[begin + 12 : begin + 16] = pages_of_it.to_bytes(4, "little")
        data.write_bytes(contents)
        assert walk_pages(data), pages_of_it


def test_a_file_that_is_none_of_lmdb_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"?" * 9000)
    [reason] = walk_pages(tmp_path / "data.mdb")
    assert "not an LMDB data file" in reason


def test_another_version_of_the_verifier_does_all(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_IS_KNOWN", False)
    monkeypatch.setattr(pages, "measure_leaf", None)
    assert walk_pages(data) == []
    data.write_bytes(data.read_bytes()[:-4096])
    assert walk_pages(data)


def test_what_the_disk_cannot_read_is_damage_and_another_error_is_none(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.FileIO):
        number = errno.EIO

        def read(self, size: int | None = -1) -> bytes:
            raise OSError(self.number, os.strerror(self.number))

    def open_failing(path: Path, mode: str) -> Failing:
        return Failing(path, mode)

    monkeypatch.setattr(Path, "open", open_failing)
    assert walk_pages(data) == ["the disk cannot read it: Input/output error"]
    Failing.number = errno.EACCES
    with pytest.raises(PermissionError):
        walk_pages(data)
