from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import DeepCheck, check
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.offline.compaction import Compaction
from riverbed.store.offline.retention import NO_RETENTION, Retention
from riverbed.store.swap import Places, end_compaction
from tests.conftest import base_seed
from tests.support.servers import ROOT
from tests.support.store.busy import busy
from tests.support.store.dying import Reaper
from tests.support.store.stores import Store

pytestmark = pytest.mark.once  # compaction is never compiled

KEPT = 40


def compact(directory: Path, maxlen: int | None = None) -> None:
    keep = NO_RETENTION if maxlen is None else Retention(max_length=maxlen)
    with Compaction(directory, Replayer().execute, now_ms=1, keep=keep) as compaction:
        compaction.run()


def opened(directory: Path) -> Store:
    return Store(directory, node_max_entries=4)


def contents(directory: Path) -> Any:
    """What a server finds, which does not have to read the log for it; the log makes the same."""
    store = opened(directory)
    found = store.dump()
    assert store.engine.recovery.commands == 0
    store.engine.close()
    assert sorted(os.listdir(directory / "state")) == ["data.mdb", "lock.mdb"]
    assert len(os.listdir(directory / LOG_DIRECTORY)) <= 3
    deep = DeepCheck(Replayer().execute, directory.parent)
    assert [str(violation) for violation in check(directory, deep_check=deep)] == []
    return found


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = opened(tmp_path_factory.mktemp("original") / "data")
    busy(store)
    store.checkpoint()
    store.engine.close()
    return store.directory


@pytest.fixture(scope="module")
def old(original: Path) -> Any:
    return contents(original)


@pytest.fixture(scope="module")
def new(original: Path) -> Any:
    """What is left when streams are cut to `KEPT` entries."""
    directory = shutil.copytree(original, original.with_name("new"))
    compact(directory, KEPT)
    return contents(directory)


@pytest.fixture(scope="module")
def reaper() -> Iterator[Reaper]:
    with Reaper() as reaper:
        yield reaper


@pytest.mark.slow
def test_a_stop_before_any_step_leaves_the_old_store_or_the_new_one_and_the_next_run_ends_it(
    original: Path, old: Any, new: Any, reaper: Reaper, tmp_path: Path
) -> None:
    found = []
    step = 0
    while True:
        directory = shutil.copytree(original, tmp_path / "data")
        is_stopped = reaper.compact(directory, maxlen=KEPT, step=step)
        if step % 5 == 0 or (directory / "state" / "compact" / "plan.json").exists():
            again = shutil.copytree(directory, tmp_path / "again")
            compact(again, KEPT)
            assert contents(again) == new
            shutil.rmtree(again)
        found.append(contents(directory))
        assert found[-1] in (old, new)
        shutil.rmtree(directory)
        step += 1
        if not is_stopped:
            break
    assert step > 40
    assert found == [old] * found.count(old) + [new] * found.count(new)
    assert found.count(new) > 5


@pytest.mark.slow
def test_fifty_kills_at_random_moments_leave_the_old_store_or_the_new_one(
    original: Path, old: Any, new: Any, reaper: Reaper, tmp_path: Path
) -> None:
    chosen = Random(base_seed())
    killed = 0
    longest_s = 0.05
    while killed < 50:
        directory = shutil.copytree(original, tmp_path / "data")
        if reaper.compact(directory, maxlen=KEPT, delay_s=chosen.random() * longest_s):
            killed += 1
            longest_s *= 1.02
        else:
            longest_s *= 0.9  # it had come to its end by then
        if killed % 2:
            compact(directory, KEPT)
            assert contents(directory) == new
        else:
            assert contents(directory) in (old, new)
        shutil.rmtree(directory)


HOLD = """
import sys
from pathlib import Path
from riverbed.store.tables.environment import Tables
tables = Tables(Path(sys.argv[1]), 1 << 30, readonly=True)
with tables.env.begin(db=tables.handles["entries"]) as txn:
    before = txn.stat(tables.handles["entries"])["entries"]
    print(before, flush=True)
    sys.stdin.readline()
    assert sum(1 for _ in txn.cursor()) == before
"""


def test_who_has_the_old_tables_open_reads_on_and_harms_nobody(original: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(original, tmp_path / "data")
    store = opened(directory)
    for number in range(20):  # the tables' own count of transactions is far from that of new ones
        store.fill(b"k%d" % number, 1)
        store.checkpoint()
    held = store.dump()
    store.engine.close()
    command = [sys.executable, "-c", HOLD, str(directory)]
    reader = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    reader.stdout.readline()
    compact(directory)
    store = opened(directory)
    assert store.dump() == held
    store.fill(b"after", 300)
    store.checkpoint()
    assert store.violations() == []
    store.engine.close()
    reader.communicate(b"\n")
    assert reader.returncode == 0


@pytest.mark.needs_root
def test_what_root_compacts_stays_its_owners(original: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(original, tmp_path / "data")
    for path in (directory, *directory.rglob("*")):
        os.chown(path, 65534, 65534)
        if path.is_file():
            path.chmod(0o640)
    compact(directory)
    found = [path.stat() for path in directory.rglob("*") if path.is_file()]
    assert {(status.st_uid, status.st_gid, status.st_mode & 0o777) for status in found} == {(65534, 65534, 0o640)}
    assert len(found) == 5, "tables, manifest, base, the log and what is kept of the old one"


def test_without_a_manifest_the_old_tables_are_put_back(original: Path, old: Any, tmp_path: Path) -> None:
    """The log was lost after a kill: the tables are all there is."""
    directory = shutil.copytree(original, tmp_path / "data")
    places = Places(directory)
    places.work.mkdir()
    (places.work / "plan.json").write_text('{"base": "appendonly.aof.2.base.aof", "incr": "appendonly.aof.9.incr.aof"}')
    places.data.rename(places.work / "old.mdb")
    manifest = places.manifest.rename(tmp_path / "manifest")
    assert end_compaction(places, OsFiles())
    manifest.rename(places.manifest)
    assert contents(directory) == old


def test_a_damaged_manifest_leaves_everything_where_it_is(original: Path, old: Any, tmp_path: Path) -> None:
    directory = shutil.copytree(original, tmp_path / "data")
    places = Places(directory)
    places.work.mkdir()
    (places.work / "plan.json").write_text('{"base": "appendonly.aof.2.base.aof", "incr": "appendonly.aof.9.incr.aof"}')
    places.data.rename(places.work / "old.mdb")
    whole = places.manifest.read_bytes()
    places.manifest.write_bytes(b"nonsense\n")
    with pytest.raises(CorruptionError):
        end_compaction(places, OsFiles())
    assert (places.work / "old.mdb").exists()
    places.manifest.write_bytes(whole)
    assert contents(directory) == old
