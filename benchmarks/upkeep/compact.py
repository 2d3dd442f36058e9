"""How small does `riverbed compact` make a store with nine tenths deleted, and how much time and memory does it need?

Nine of ten entries are deleted one by one, so that every page of the tables has holes, and a fifth of all is pending,
mostly deleted entries.  Redis rewrites its log of the same commands, which is the nearest thing it has: it does so from
memory while it serves clients, and has no tables.

Clients must see the same stream and group before and after.  A run with a tenth of the data shows whether memory grows
with the data.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.load.background import rewrite_log
from benchmarks.load.toolrun import run_tool
from benchmarks.load.traffic import FIRST_MS, TIMEOUT_S, load, read_for
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.raw import RawClient
from tests.support.servers import Server

_MB: Final = 1_000_000
_KEY: Final = "events"
_GROUP: Final = "workers"
_KEPT: Final = 10  # one of ten
_IDS_A_COMMAND: Final = 900
_SHOWN: Final = 1000
_LOOKS: Final = (
    ("XLEN", _KEY),
    ("XINFO", "STREAM", _KEY, "FULL", "COUNT", _SHOWN),
    ("XPENDING", _KEY, _GROUP),
    ("XRANGE", _KEY, "-", "+", "COUNT", _SHOWN),
)


@dataclass(frozen=True)
class Sparse:
    """A data directory in which most was deleted, and what its clients see."""

    directory: Path
    looks: list[bytes]


def answer(rig: Rig) -> Answer:
    entries, pending = rig.sizes.entries, min(rig.sizes.pending, rig.sizes.entries // 5)
    seconds = Measurement("compaction; BGREWRITEAOF", "s")
    before = Measurement("tables before", "MB")
    after = Measurement("tables after", "MB")
    log_before = Measurement("log before", "MB")
    log_after = Measurement("log after", "MB")
    work = Measurement("most that lay beside the old store", "MB")
    announced = Measurement("the same, as announced", "MB")
    small = Measurement(f"private memory at its peak, {entries // 10:,} entries", "MB", below(100, "MB"))
    peak = Measurement(f"private memory at its peak, {entries:,} entries", "MB", below(100, "MB"))
    sparse = {contender: _make(rig, contender, entries, pending) for contender in Contender}
    tenth = _make(rig, Contender.RIVERBED, entries // 10, pending // 10)
    for contender in rig.turns(f"compacting {entries:,} entries"):
        directory = _copy(rig, sparse[contender].directory)
        samples_of(log_before, contender).append(_log_bytes(directory) / _MB)
        if contender is Contender.REDIS:
            samples_of(seconds, contender).append(_rewrite(rig, directory))
        else:
            small.riverbed.append(run_tool("compact", _copy(rig, tenth.directory)).peak_bytes / _MB)
            made = run_tool("compact", directory)
            state = made.report["state_bytes"]
            seconds.riverbed.append(made.seconds)
            before.riverbed.append(state["before"] / _MB)
            after.riverbed.append(state["after"] / _MB)
            work.riverbed.append(made.report["work_bytes"] / _MB)
            announced.riverbed.append(made.report["needed_bytes"] / _MB)
            peak.riverbed.append(made.peak_bytes / _MB)
        samples_of(log_after, contender).append(_log_bytes(directory) / _MB)
        with rig.opened(contender, directory) as server:
            _require_same(sparse[contender].looks, _look(server), contender)
        shutil.rmtree(directory)
    return Answer(
        f"Compacting a store: {entries:,} entries, 90 % of them deleted, {pending:,} pending",
        "riverbed compact DIR; BGREWRITEAOF",
        [seconds, before, after, log_before, log_after, work, announced, small, peak],
        (
            "XLEN, XINFO STREAM FULL, XPENDING and XRANGE are the same before and after.",
            "Seconds include the start of Python. Redis rewrites into an RDB file.",
        ),
    )


def _make(rig: Rig, contender: Contender, entries: int, pending: int) -> Sparse:
    """Load, read for a group, delete all but every tenth."""
    server = rig.server(contender, "everysec")
    with server:
        rig.say(f"loading {entries:,} entries to be deleted: {contender.value}")
        load(server.port, _KEY, entries, explicit_ids=True)
        read_for(server.port, _KEY, _GROUP, pending)
        rig.say(f"deleting nine of ten: {contender.value}")
        with server.client(timeout_s=TIMEOUT_S) as client:
            deleted = 0
            for first in range(0, entries, _IDS_A_COMMAND * _KEPT // (_KEPT - 1)):
                numbers = range(first, min(first + _IDS_A_COMMAND * _KEPT // (_KEPT - 1), entries))
                ids = [b"%d-0" % (FIRST_MS + number) for number in numbers if number % _KEPT]
                deleted += int(client.ask("XDEL", _KEY, *ids)[1:])
            assert deleted == entries - len(range(0, entries, _KEPT)), deleted
        looks = _look(server)
        server.stop()
    return Sparse(server.directory, looks)


def _look(server: Server) -> list[bytes]:
    with RawClient(server.port, timeout_s=TIMEOUT_S) as client:
        return client.pipeline(list(_LOOKS))


def _require_same(before: list[bytes], after: list[bytes], contender: Contender) -> None:
    """Redis packs its nodes again, so its XINFO replies may differ."""
    for words, was, told in zip(_LOOKS, before, after, strict=True):
        if was != told and not (contender is Contender.REDIS and words[0] == "XINFO"):
            raise AssertionError(f"{contender.value}: {' '.join(map(str, words))} is not what it was")


def _copy(rig: Rig, source: Path) -> Path:
    return Path(shutil.copytree(source, rig.new_directory(), dirs_exist_ok=True))


def _log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "appendonlydir").iterdir())


def _rewrite(rig: Rig, directory: Path) -> float:
    """-> seconds"""
    with rig.opened(Contender.REDIS, directory) as server:
        seconds = rewrite_log(server)
        server.stop()
    return seconds
