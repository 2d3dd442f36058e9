from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.store.disk.locks import leases
from riverbed.store.disk.locks.leases import Others, other_users, other_writers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    return path


@pytest.fixture
def reading(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def writing(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY)
    yield fd
    os.close(fd)


def test_a_file_that_is_open_once_has_no_other_users(writing: int) -> None:
    assert other_users(writing) is Others.NONE
    assert other_users(writing) is Others.NONE, "the lease was given back"


def test_a_reader_is_another_user_but_no_writer(path: Path, reading: int) -> None:
    assert other_writers(reading) is Others.NONE
    second = os.open(path, os.O_RDONLY)
    assert other_users(reading) is Others.SOME
    assert other_writers(reading) is Others.NONE
    os.close(second)
    assert other_users(reading) is Others.NONE


@pytest.mark.usefixtures("writing")
def test_a_writer_is_both(reading: int) -> None:
    assert other_users(reading) is Others.SOME
    assert other_writers(reading) is Others.SOME


def test_a_mapping_is_a_user_even_when_its_descriptor_is_closed(path: Path, writing: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)
    assert other_users(writing) is Others.SOME
    mapped.close()
    assert other_users(writing) is Others.NONE


def test_nothing_is_known_of_what_is_no_file(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    assert other_users(fd) is Others.UNKNOWN
    os.close(fd)


def test_nothing_is_known_on_a_system_without_leases(reading: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_SET_LEASE", None)
    assert other_users(reading) is Others.UNKNOWN
    assert other_writers(reading) is Others.UNKNOWN
