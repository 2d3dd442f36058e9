"""LMDB of all machines: real, with syncs that a machine's disk hears about and may let fail.

`lmdb.open` is replaced for the time of a simulation.  An environment that does not sync its commits reports each sync,
so that a power cut may destroy what was written since; one that syncs its commits has nothing to lose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from tests.support.simulation.disk import Disk, state_file

lmdb_open = lmdb.open


class _Environment:
    """An open LMDB environment of one machine."""

    def __init__(self, env: Any, disk: Disk, path: Path, *, syncs_later: bool) -> None:
        self._env = env
        self._disk = disk
        self._path = path
        self._syncs_later = syncs_later
        if syncs_later:
            disk.tables_synced(path)
        else:
            disk.tables_forgotten(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def sync(self, force: bool = False) -> None:
        try:
            self._disk.step("sync_tables")
        except OSError as error:
            raise lmdb.DiskError(f"mdb_env_sync: {error.strerror}") from error
        if self._syncs_later:
            self._disk.tables_synced(self._path)


class Environments:
    """The environments that the machines have open."""

    def __init__(self, disk_of: Callable[[Path], Disk | None]) -> None:
        """`disk_of` finds the disk on which a path is."""
        self._disk_of = disk_of
        self._open: list[tuple[Disk, Any]] = []

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace `lmdb.open`."""
        lmdb.open = self.open
        try:
            yield
        finally:
            lmdb.open = lmdb_open

    def open(self, path: str, **options: Any) -> Any:
        disk = self._disk_of(Path(path))
        env = lmdb_open(path, **options)
        if disk is None or options.get("readonly"):
            return env
        self._open.append((disk, env))
        return _Environment(env, disk, Path(path) / state_file(Path()).name, syncs_later=not options.get("sync", True))

    def close_all(self, disk: Disk) -> None:
        """Close what a killed server has left open."""
        for its, env in self._open:
            if its is disk:
                env.close()
        self._open = [(its, env) for its, env in self._open if its is not disk]
