"""What an earlier version wrote opens unchanged: every stream, group and pending entry shows as that version showed it.

Each fixture has a data directory whose server was killed, with a log behind the last checkpoint; a snapshot of it, made
before that; and in `shown.json`, for both, what `states.state_of` found on the server that wrote them.

    riverbed-0.1    format version 2: a rewritten base, and 14 streams of a random script
    format-4        groups and consumers with many kinds of names, which version 5 has to find by them
    format-5        claims out of order in one millisecond, for which version 6 has turns
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import lmdb
import pytest

from riverbed.store.check import check
from riverbed.store.errors import StoreError
from riverbed.store.tables import environment
from riverbed.store.tables.data_file.power_loss import MARK_NAME
from riverbed.store.tables.environment import Tables
from tests.conftest import StartRiverbed
from tests.support.archives import unpack
from tests.support.program import run
from tests.support.scripts.states import OF_NODES, OURS, state_of
from tests.support.servers import RiverbedServer

FIXTURES = Path(__file__).parents[1] / "fixtures"

pytestmark = pytest.mark.parametrize("fixture", ["riverbed-0.1", "format-4", "format-5"])


def unpacked(fixture: str, name: str, into: Path) -> Path:
    unpack(FIXTURES / fixture / f"{name}.tar.xz", into)
    return into


def as_it_was(fixture: str, part: str) -> list[list[object]]:
    recorded: dict[str, list[list[object]]] = json.loads((FIXTURES / fixture / "shown.json").read_text())
    return [[*row[:2], without_records(str(row[2])), *row[3:]] for row in recorded[part]]


def without_records(full: str) -> str:
    """XINFO STREAM FULL without what was forgotten a day after the fixture was made, at the latest."""
    return re.sub(r"(\$'[pi]ids-tracked') :'\d+'", r"\1", full)


def shown_by(server: RiverbedServer) -> list[list[object]]:
    """All that the server shows of its streams, in the form of `shown.json`."""
    return [
        [
            database,
            key.decode("latin-1"),
            without_records(full),
            deadline.decode("latin-1"),
            [s.decode("latin-1") for s in summaries],
        ]
        for (database, key), (full, deadline, summaries) in sorted(state_of(server, frozenset()).items())
    ]


def test_a_data_directory_of_an_earlier_version_shows_the_same(
    start_riverbed: StartRiverbed, tmp_path: Path, fixture: str
) -> None:
    server = start_riverbed(unpacked(fixture, "data", tmp_path / "data"), options=OURS)
    assert shown_by(server) == as_it_was(fixture, "killed")
    assert server.stop() == 0
    server.start()
    assert shown_by(server) == as_it_was(fixture, "killed")
    assert server.stop() == 0
    assert list(check(server.directory)) == []


def test_the_log_alone_of_an_earlier_version_shows_the_same(
    start_riverbed: StartRiverbed, tmp_path: Path, fixture: str
) -> None:
    """But for the nodes, of which a log says nothing."""
    both = start_riverbed(unpacked(fixture, "data", tmp_path / "both"), options=OURS)
    alone = unpacked(fixture, "data", tmp_path / "alone")
    shutil.rmtree(alone / "state")
    unknown = OF_NODES | {b"pids-tracked", b"iids-tracked"}  # records are forgotten one by one after a day
    assert state_of(start_riverbed(alone, options=OURS), unknown) == state_of(both, unknown)


def test_a_snapshot_of_an_earlier_version_is_restored(
    start_riverbed: StartRiverbed, tmp_path: Path, fixture: str
) -> None:
    snapshot = unpacked(fixture, "snapshot", tmp_path) / "before"
    restored = run("restore", snapshot, tmp_path / "restored")
    assert restored.exit_code == 0, restored.output
    assert list(check(tmp_path / "restored")) == []
    assert shown_by(start_riverbed(tmp_path / "restored", options=OURS)) == as_it_was(fixture, "snapshot")


def test_an_earlier_version_is_read_where_nothing_may_be_written(tmp_path: Path, fixture: str) -> None:
    snapshot = unpacked(fixture, "snapshot", tmp_path) / "before"
    for words in (["check", str(snapshot)], ["stat", str(snapshot), "--groups"], ["dump", str(snapshot)]):
        shown = run(*words)
        assert shown.exit_code == 0, shown.output


def test_a_snapshot_of_tables_of_an_earlier_version_says_so(tmp_path: Path, fixture: str) -> None:
    """The programs of that version can read it."""
    data = unpacked(fixture, "data", tmp_path / "data")
    (data / "state" / MARK_NAME).unlink(missing_ok=True)  # as if the machine had not booted since
    made = run("snapshot", data, tmp_path / "made")
    assert made.exit_code == 0, made.output
    manifest = json.loads((tmp_path / "made" / "manifest.json").read_text())
    assert manifest["tables_version"] == {"riverbed-0.1": 2, "format-4": 4, "format-5": 5}[fixture]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lmdb.MapFullError("full"), "cannot be written: lmdb-map-size is too small"),
        (lmdb.Error("mdb_txn_commit: Input/output error"), "Input/output error; is the disk full?"),
    ],
    ids=["map", "disk"],
)
def test_an_upgrade_for_which_there_is_no_room_says_so_and_changes_nothing(
    tmp_path: Path, fixture: str, fault: lmdb.Error, reason: str
) -> None:
    state = unpacked(fixture, "data", tmp_path) / "state"
    before = (state / "data.mdb").read_bytes()

    def fail(*_: object) -> None:
        raise fault

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment, "upgrade", fail)
        with pytest.raises(StoreError, match=re.escape(reason)):
            Tables(tmp_path, 1 << 30)
    assert (state / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("damage", [lmdb.CorruptedError("torn"), lmdb.PageNotFoundError("gone")])
def test_damage_that_an_upgrade_meets_is_shown_as_damage(tmp_path: Path, fixture: str, damage: lmdb.Error) -> None:
    unpacked(fixture, "data", tmp_path)

    def fail(*_: object) -> None:
        raise damage

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(environment, "upgrade", fail)
        with pytest.raises(type(damage)):
            Tables(tmp_path, 1 << 30)
