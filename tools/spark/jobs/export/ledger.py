"""The ledger of an export: a list of its runs beside the files, so that each entry is written once.

    OUT/key=orders/date=2026-11-21/part-...parquet
    OUT/_riverbed/00000001.json           run 1 is complete: its snapshot, its end in each stream, its files
    OUT/_riverbed/00000002.begun.json     run 2: all files are written, and are being moved to their places
    OUT/_riverbed/staging-xxxx/key=...    files of a run that does not count yet
    OUT/_riverbed/lock                    held by the export that runs on this machine

Spark writes into a directory that readers skip, as they skip every name that begins with an underscore.  Each run has
another directory, because tasks of a killed run may continue for a while on other machines.  Then the list of the run
is written atomically: now the run counts.  Its files are moved, and the list takes its final name.

    killed before the list      the next run deletes the staged files: the killed run has written nothing
    killed after it             the next run first moves the remaining files

So a run that is repeated neither loses nor repeats an entry.  While files are moved, readers see a part of a run.  A
reader that must not see it takes the `files` of the complete runs.  This module knows neither snapshots nor entries.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from riverbed.tools.console.console import Failure
from riverbed.tools.spark.jobs.export.hadoop_files import HadoopFiles

_FORMAT: Final = "riverbed-export"
_VERSION: Final = 2  # version 1 had no store_id
_FOLDER: Final = "_riverbed"
_STAGING: Final = "staging-"
_LOCK: Final = f"{_FOLDER}/lock"
_WHOLE = re.compile(r"([0-9]{8})\.json")
_BEGUN = re.compile(r"([0-9]{8})\.begun\.json")
_STAGED = re.compile(rf"{_FOLDER}/{_STAGING}[0-9a-f]{{8}}")
_KINDS: Final = {"settings": dict, "snapshot": str, "offset": int, "time_ms": int, "rows": int, "streams": dict}
# A file that Spark has written: its folders are its key and its day, and no part of the name leads elsewhere.
_EXPORTED = re.compile(r"(?:[A-Za-z]+=[^/\0]+/)*part-[^/\0]+")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an export; `streams` says how far this run and all earlier ones have written each stream."""

    run: int
    settings: dict[str, Any]  # equal in all runs
    snapshot: str
    offset: int
    time_ms: int
    replication_id: str | None
    rows: int
    byte_count: int
    files: list[str]
    streams: dict[str, Any]
    staging: str = ""  # where its files were written
    store_id: str | None = None


class Ledger:
    """The runs in one directory.  Only one program may use it at a time, inside `files.locked(ledger.lock)`."""

    lock = _LOCK

    def __init__(self, files: HadoopFiles) -> None:
        self._files = files
        self._staging = f"{_FOLDER}/{_STAGING}{secrets.token_hex(4)}"
        self.last: Run | None = None

    def open(self) -> bool:
        """Read the last complete run, and finish an interrupted run.  -> whether there was an interrupted run

        Raises Failure for a directory that is not an export, or is an export of a newer version.
        """
        names = self._files.names(_FOLDER)
        whole = sorted(int(found[1]) for name in names if (found := _WHOLE.fullmatch(name)))
        begun = sorted(int(found[1]) for name in names if (found := _BEGUN.fullmatch(name)))
        if not whole and not begun:
            others = [name for name in self._files.names() if name != _FOLDER]
            if others:
                raise Failure(f"{self._files.root} exists and is not an export: it has {others[0]}")
        if whole:
            self.last = self._read(whole[-1], f"{_FOLDER}/{whole[-1]:08}.json")
        if begun:
            interrupted = self._read(begun[-1], _begun(begun[-1]))
            self._require_own_files(interrupted)
            self._finish(interrupted, is_again=True)
        for name in names:
            if name.startswith(_STAGING):
                self._files.delete(f"{_FOLDER}/{name}")
        return bool(begun)

    @property
    def next_run(self) -> int:
        return self.last.run + 1 if self.last else 1

    @property
    def staging(self) -> str:
        """The directory where Spark is to write; it does not exist yet."""
        return self._files.path(self._staging)

    def staged(self) -> list[tuple[str, int]]:
        """(name, bytes) of the files that Spark has written to `staging`.

        An attempt of a task that has lost may write below `_temporary` still.
        """
        return sorted(
            (name, size)
            for name, size in self._files.files(self._staging)
            if not any(part.startswith(("_", ".")) for part in name.split("/"))
        )

    def commit(self, run: Run) -> None:
        """Write the list of `run`, and move its staged files to their places."""
        run = replace(run, staging=self._staging)
        document = {"format": _FORMAT, "version": _VERSION, **asdict(run)}
        self._files.write(_begun(run.run), json.dumps(document, indent=1).encode())
        self._finish(run)
        self._files.delete(self._staging)

    def _finish(self, run: Run, *, is_again: bool = False) -> None:
        move = self._files.move_again if is_again else self._files.move
        for name in run.files:
            if self._files.exists(f"{run.staging}/{name}"):
                move(f"{run.staging}/{name}", name)
            elif not self._files.exists(name):
                raise Failure(f"run {run.run} was interrupted, and {self._files.path(name)} is gone since")
        move(_begun(run.run), f"{_FOLDER}/{run.run:08}.json")
        self.last = run

    def _read(self, number: int, name: str) -> Run:
        path = self._files.path(name)
        try:
            values = json.loads(self._files.read(name))
            if values.pop("format") != _FORMAT:
                raise Failure(f"{path} is not the list of an export")
            if not 1 <= (version := values.pop("version")) <= _VERSION:
                raise Failure(f"{path} has version {version}; this program knows 1 to {_VERSION}")
            run = Run(**values)
            if run.run != number:
                raise ValueError(f"it is of run {run.run!r}")
            if wrong := [name for name, kind in _KINDS.items() if not isinstance(getattr(run, name), kind)]:
                raise ValueError(f"{wrong[0]} is {getattr(run, wrong[0])!r}")
            return run
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Failure(f"{path} is damaged: {error!r}") from error

    def _require_own_files(self, run: Run) -> None:
        """Raise Failure if a list would have files moved that no export has written: others may write here."""
        try:
            stray = [run.staging] if _STAGED.fullmatch(run.staging) is None else []
            stray += [file for file in run.files if _EXPORTED.fullmatch(file) is None]
        except TypeError as error:  # no texts
            raise Failure(f"{self._files.path(_begun(run.run))} is damaged: {error!r}") from error
        if stray:
            raise Failure(f"{self._files.path(_begun(run.run))} is damaged: {stray[0]!r} is not of an export")


def _begun(run: int) -> str:
    return f"{_FOLDER}/{run:08}.begun.json"
