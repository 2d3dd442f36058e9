"""What an earlier version wrote opens unchanged: every stream, group and pending entry shows as that version showed it.

`tests/fixtures/riverbed-0.1` has a data directory whose server was killed, with a rewritten base, a log behind the last
checkpoint and 14 streams of a random script; a snapshot of it, made before the last 300 commands; and in `shown.json`,
for both, what `states.state_of` found on the server that wrote them.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

from click.testing import CliRunner

from riverbed.tools.cli import main
from tests.conftest import StartRiverbed
from tests.support.scripts.states import OF_NODES, OURS, state_of
from tests.support.servers import RiverbedServer

FIXTURE = Path(__file__).parents[1] / "fixtures" / "riverbed-0.1"


def unpacked(name: str, into: Path) -> Path:
    with tarfile.open(FIXTURE / f"{name}.tar.xz") as archive:
        archive.extractall(into, filter="data")
    return into


def as_it_was(part: str) -> list[list[object]]:
    recorded: dict[str, list[list[object]]] = json.loads((FIXTURE / "shown.json").read_text())
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


def test_a_data_directory_of_an_earlier_version_shows_the_same(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = start_riverbed(unpacked("data", tmp_path / "data"), options=OURS)
    assert shown_by(server) == as_it_was("killed")
    assert server.stop() == 0
    server.start()
    assert shown_by(server) == as_it_was("killed")


def test_the_log_alone_of_an_earlier_version_shows_the_same(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    """But for the nodes, of which a log says nothing."""
    both = start_riverbed(unpacked("data", tmp_path / "both"), options=OURS)
    alone = unpacked("data", tmp_path / "alone")
    shutil.rmtree(alone / "state")
    unknown = OF_NODES | {b"pids-tracked", b"iids-tracked"}  # records are forgotten one by one after a day
    assert state_of(start_riverbed(alone, options=OURS), unknown) == state_of(both, unknown)


def test_a_snapshot_of_an_earlier_version_is_restored(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    snapshot = unpacked("snapshot", tmp_path) / "before"
    restored = CliRunner().invoke(main, ["restore", str(snapshot), str(tmp_path / "restored")], catch_exceptions=False)
    assert restored.exit_code == 0, restored.output
    assert shown_by(start_riverbed(tmp_path / "restored", options=OURS)) == as_it_was("snapshot")
