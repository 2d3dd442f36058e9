from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from riverbed.store.disk.locks import other_writers, remote
from riverbed.store.disk.locks.other_writers import writer_of
from riverbed.store.disk.locks.remote import remote_type


def mount(directory: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the file system of `directory` be of type `kind`, in the system's list of mounts."""
    device = directory.stat().st_dev
    mounts = directory / "mountinfo"
    mounts.write_text(
        "22 1 0:0 / / rw,relatime shared:1 - nfs4 server:/other rw\n"
        f"30 22 {os.major(device)}:{os.minor(device)} / /a\\040place rw shared:2 master:1 - {kind} a:/b rw,vers=4.2\n"
    )
    monkeypatch.setattr(remote, "_MOUNTS", mounts)


@pytest.mark.parametrize(("kind", "found"), [("nfs4", "nfs4"), ("cifs", "cifs"), ("ext4", None), ("overlay", None)])
def test_a_file_system_of_another_machine_is_told_by_its_type(
    tmp_path: Path, kind: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(tmp_path, kind, monkeypatch)
    assert remote_type(tmp_path) == found
    assert remote_type(tmp_path / "not made yet") == found
    assert remote_type(tmp_path / "not" / "made") is None
    monkeypatch.setattr(remote, "_MOUNTS", tmp_path / "missing")
    assert remote_type(tmp_path) is None


@pytest.mark.parametrize(("kind", "writer"), [("nfs4", None), ("cifs", None), ("ext4", "another process")])
def test_a_lease_that_another_machine_refuses_is_no_writer(
    tmp_path: Path, kind: str, writer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux refuses one on NFS, with EAGAIN, to a client that holds no delegation of the file."""
    path = tmp_path / "log"
    path.touch()
    mount(tmp_path, kind, monkeypatch)
    real = fcntl.fcntl

    def refuse(fd: int, operation: int, argument: int = 0) -> int:
        if operation == fcntl.F_SETLEASE:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return int(real(fd, operation, argument))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(other_writers, "_PATIENCE_S", 0.0)
    assert writer_of(path) == writer
