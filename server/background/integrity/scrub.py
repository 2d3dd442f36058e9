"""Compares what lies on the disk with its checksums, so that damage is found while it can be mended.

    start --a minute--> pass --`scrub-interval`--> pass ...

A start does not read the part of the log that its tables cover, nor does anything else until the tables are lost: then
it is too late.  A pass walks what each subject lists, in one thread, in steps of a millisecond with much longer pauses.
So it takes a few per cent of one processor and of the disk, and clients notice nothing.

A subject is a function that lists `Walk`s at the beginning of a pass; the log is one.  The tables come last, and are
read by another process (`scrub_worker.py`): broken pages can end the process that reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from riverbed.server.background.worker import DamageMetError, Worker, WorkerError
from riverbed.server.background.worker_modules import SCRUB
from riverbed.store.disk.real_files import is_there
from riverbed.store.errors import CorruptionError, LogWriteError
from riverbed.store.layout import DATA_NAME, LOG_MANIFEST
from riverbed.store.log import manifest as manifests
from riverbed.store.log.manifest import LogFile
from riverbed.store.log.scrub import scrub, scrubbed_files, scrubbed_part

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.store.engine import Engine
    from riverbed.store.log.append_log import Log

log = logging.getLogger("riverbed")

FIRST_S: Final = 60.0
# After a step comes a pause that is so many times as long, and one that keeps to this speed.
_PAUSES_A_STEP: Final = 19
_MAX_BYTES_A_SECOND: Final = 32 << 20


class Cure(NamedTuple):
    """What the log says about damage: what the server does with `auto-repair yes`, and what a person can do without."""

    by_server: str
    by_hand: str


_CURE: Final = Cure(
    "The tables have everything, so the server goes on, and makes the log again of the tables. Look after the disk",
    "The tables have everything, so the server goes on. Run BGREWRITEAOF: it makes the log again of the tables. Then "
    "look after the disk",
)
_CURE_OF_MANIFEST: Final = _CURE._replace(
    by_server="The server knows what belongs there, and writes it again. Look after the disk"
)
_CURE_OF_TABLES: Final = Cure(
    "Commands that need it answer with an error until the server has made the tables again of the log. Look after the "
    "disk",
    "Commands that need it answer with an error until the tables are made again of the log: by `auto-repair yes`, by "
    "RIVERBED REPAIR, or by `riverbed check --repair` when the server is stopped. Then look after the disk",
)
_CURE_OF_GONE: Final = Cure(
    "The server makes the tables again of the log. Look after the disk",
    "Until it stops the server has them open. RIVERBED REPAIR makes them again of the log",
)
_BOTH: Final = (
    "the log and the tables are both damaged, so that neither can be made of the other: a replica asks its primary for "
    "everything; in the place of a primary promote a replica, or restore a snapshot"
)
# Why a file could not be read that says nothing of its bytes.
_OF_THE_PROCESS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM))
_FULL_SYNC: Final = "Only replicas that are away would need it, and take a full sync now. Look after the disk"
_CURE_OF_BACKLOG: Final = Cure(_FULL_SYNC, _FULL_SYNC)


class Walk(NamedTuple):
    """One file, or another thing with a name, to be compared with its checksums.

    `steps` does so, and yields the bytes of each step.  It runs in a thread, and raises CorruptionError, OSError.
    `cure` says what to do about damage.
    """

    name: str
    size: int
    steps: Callable[[], Iterator[int]]
    cure: Cure


Subject = Callable[[], Iterable[Walk]]


def log_walks(engine: Engine) -> list[Walk]:
    """The files of the log."""
    manifest = Walk(LOG_MANIFEST, 0, partial(_compare_manifest, engine, engine.log), _CURE_OF_MANIFEST)
    return [manifest] + [
        Walk(
            file.name,
            file.size if file.size is not None else engine.log.end.position,
            partial(_steps, engine, engine.log, file),
            _CURE,
        )
        for file in scrubbed_files(engine.log)
    ]


def _compare_manifest(engine: Engine, of: Log) -> Iterator[int]:
    """Compare the manifest on the disk with the one in memory: the next start reads the one on the disk."""
    path, known = of.home.path / LOG_MANIFEST, of.home.manifest
    try:
        found = manifests.load(path, engine.files)
        if found is None:
            raise CorruptionError(str(path), None, "the manifest is missing")
        if found.files != known.files:
            raise CorruptionError(str(path), None, "the manifest lists other files than the server has written to it")
    except CorruptionError:
        # else another was written meanwhile, or is being written
        if engine.log is of and of.home.manifest is known and not of.listing.is_replacing:
            raise
    yield 0


def _steps(engine: Engine, of: Log, file: LogFile) -> Iterator[int]:
    try:
        yield from scrub(scrubbed_part(of, file, engine.files), engine.files)
    except CorruptionError:
        # a full sync may have put another file in the place of this one, and a rewrite may have done away with it
        if engine.log is of and file.name in {listed.name for listed in scrubbed_files(of)}:
            raise


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Scrub:
    """The scrubs of one server."""

    def __init__(self, core: Core, tasks: Tasks) -> None:
        self.subjects: list[Subject] = [partial(log_walks, core.engine)]
        self.mend: list[Callable[[bool], None]] = []  # called after a pass that found damage: whether in the tables
        self._core = core
        self._engine = core.engine
        self._status = core.scrub
        self._tasks = tasks
        self._monotonic = core.clock.monotonic
        self._unread: list[str] = []  # what the pass could not read
        self._changed = asyncio.Event()
        self._stopped = threading.Event()
        self._task: asyncio.Task[None] | None = None
        core.config.observe("scrub-interval", self._changed.set)

    def start(self) -> None:
        self._task = self._tasks.start("scrubbing", self._run())

    def stop(self) -> None:
        """End the pass under way; its thread ends with its step."""
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        wait_s = FIRST_S
        while True:
            await self._wait(wait_s)
            try:
                await self._pass()
            except Exception:  # a thread that cannot be started, for instance; the next one comes
                log.exception("a scrub has failed")
            wait_s = float("inf")

    async def _wait(self, most_s: float) -> None:
        """Wait for `scrub-interval`, or `most_s` if that is less, from now on."""
        since_s = self._monotonic()
        while True:
            self._changed.clear()
            interval_s = self._core.config.scrub_interval
            due_s = since_s + min(interval_s, most_s) - self._monotonic()
            try:
                async with asyncio.timeout(max(due_s, 0) if interval_s else None):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def _pass(self) -> None:
        status, begun_s = self._status, self._monotonic()
        self.forget_gone()
        self._unread = []
        walks = list(self._listed())
        status.begin(sum(walk.size for walk in walks))
        try:
            await self._tasks.in_thread("scrubbing", self._walk, walks)
            rows = await self._scrub_tables()
            if rows is None:
                self._unread.append(DATA_NAME)
        finally:
            status.end(int(self._core.clock.time()))
        result = f"{len(status.damage)} damaged" if status.damage else "sound"
        if self._unread:
            result = f"{len(status.damage)} damaged, and {', '.join(self._unread)} could not be read"
        self._mend()
        size_mb, seconds = status.done_bytes / 1e6, self._monotonic() - begun_s
        log.log(
            logging.WARNING if self._unread else logging.INFO,
            "scrubbed %s of the log, %.1f MB, and %s of the tables in %.1f s: %s",
            *(_counted(len(walks), "file"), size_mb, _counted(rows or 0, "row"), seconds, result),
        )

    def _listed(self) -> Iterator[Walk]:
        for subject in self.subjects:
            try:
                yield from subject()
            except CorruptionError as error:
                self._found(Path(error.file).name, error, _CURE)
            except OSError as error:
                log.warning("not scrubbed: %s", error)
                self._unread.append(str(error.filename or error))

    def forget_gone(self) -> None:
        """Forget the damage of files that the log does without by now."""
        if not self._status.damage:
            return
        manifest = self._engine.log.home.manifest
        self._status.keep({DATA_NAME, LOG_MANIFEST, *(file.name for file in (*manifest.files, *manifest.backlog))})

    def _mend(self) -> None:
        """Have what is damaged mended; the log's backlog cannot be, and ends."""
        damaged = self._status.damage.keys()
        engine_log = self._engine.log
        manifest = engine_log.home.manifest
        if self._core.config.auto_repair and not damaged.isdisjoint(file.name for file in manifest.backlog):
            engine_log.history.end_backlog()
            self.forget_gone()
            log.warning("the backlog was damaged and has ended: replicas that are away take a full sync")
        if self._core.config.auto_repair and LOG_MANIFEST in damaged:
            self._write_manifest()
        listed = {file.name for file in manifest.files}
        if DATA_NAME in damaged and not damaged.isdisjoint(listed):
            log.error(_BOTH)
        needed = {DATA_NAME, *listed}
        if not damaged.isdisjoint(needed):
            for mend in self.mend:
                mend(DATA_NAME in damaged)

    def _write_manifest(self) -> None:
        try:
            self._engine.log.listing.write()
        except LogWriteError as error:
            log.error("the manifest of the log was damaged and could not be written again: %s", error)
        else:
            self._status.damage.pop(LOG_MANIFEST, None)
            log.warning("the manifest of the log was damaged and is written again")

    # -- in another process --------------------------------------------------------------------------------------------

    async def _scrub_tables(self) -> int | None:
        """Compare the tables with their checksums; -> how many rows there were, None when they could not be read."""
        engine = self._engine
        if not engine.is_loaded:
            return 0
        tables = engine.tables
        reasons: list[str] = []
        worker = Worker(self._tasks, SCRUB, engine.directory, engine.options.map_bytes)
        try:
            async with worker:
                while "damaged" not in (answer := await worker.receive()):
                    if "damage" in answer:
                        reasons.append(str(answer["damage"]))
                    else:
                        self._status.rows, self._status.all_rows = int(answer["rows"]), int(answer["of"])
        except WorkerError as error:
            data = tables.path / DATA_NAME
            is_gone = False
            with contextlib.suppress(OSError):  # one that cannot be looked at is not gone
                is_gone = engine.tables is tables and not is_there(data)
            if not is_gone:
                log.warning("the tables were not scrubbed: %s", error)
            if engine.tables is tables:  # else others were put in the place of these, which are closed
                tables.env.reader_check()  # its place among LMDB's readers would keep pages from being used again
            if is_gone:
                self._found(DATA_NAME, f"{data} is gone", _CURE_OF_GONE)
            elif isinstance(error, DamageMetError) and engine.tables is tables:
                self._found(DATA_NAME, f"broken pages ended the process of the scrub: {error}", _CURE_OF_TABLES)
            return None
        if engine.tables is tables:  # else a full sync has put others in the place of these
            damaged = int(answer["damaged"])
            self._status.damaged_rows = damaged
            if damaged:
                more = f", and {damaged - 1} more" if damaged > 1 else ""
                self._found(DATA_NAME, f"{reasons[0]}{more}", _CURE_OF_TABLES)
            else:
                self._status.damage.pop(DATA_NAME, None)
        return int(answer["rows"])

    # -- in a thread ---------------------------------------------------------------------------------------------------

    def _walk(self, walks: list[Walk]) -> None:
        for walk in walks:
            try:
                for size in self._paced(walk.steps()):
                    self._status.done_bytes += size
                    if self._stopped.is_set():
                        return
            except FileNotFoundError:
                continue  # a rewrite has done away with it
            except (CorruptionError, OSError) as error:
                if isinstance(error, OSError) and error.errno in _OF_THE_PROCESS:
                    log.warning("not scrubbed: %s", error)
                    self._unread.append(walk.name)
                else:
                    self._found(walk.name, error, self._cure_of(walk))
            else:
                self._status.damage.pop(walk.name, None)

    def _cure_of(self, walk: Walk) -> Cure:
        """What to do about its damage now: a rewrite may have made a kept end of the former log of a file since."""
        backlog = self._engine.log.home.manifest.backlog
        return _CURE_OF_BACKLOG if walk.name in {file.name for file in backlog} else walk.cure

    def _paced(self, steps: Iterator[int]) -> Iterator[int]:
        begun_s = self._monotonic()
        for size in steps:
            yield size
            now_s = self._monotonic()
            self._stopped.wait(max((now_s - begun_s) * _PAUSES_A_STEP, size / _MAX_BYTES_A_SECOND))
            begun_s = self._monotonic()

    def _found(self, name: str, what: object, cure: Cure) -> None:
        text = " ".join(str(what).split())  # INFO has a line for it
        if self._status.damage.get(name) != text:
            is_mended = self._core.config.auto_repair
            log.error("damage on the disk: %s. %s", text, cure.by_server if is_mended else cure.by_hand)
        self._status.damage[name] = text
