from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from riverbed.server.version import VERSION
from riverbed.store.format.entries import bare_row
from riverbed.store.format.packing import pack_row
from riverbed.store.format.rows import FORMAT_VERSION
from riverbed.store.format.streams import entry_key
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.offline.repair import Repair, RepairError
from riverbed.store.offline.replaced import Action
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.store.tables.environment import Tables
from riverbed.store.wire import seal
from tests.conftest import StartRiverbed
from tests.support.program import run
from tests.support.replicas import fill
from tests.support.servers import RiverbedServer
from tests.support.store.stores import Store
from tests.support.terminal import on_terminal
from tests.support.waiting import rewritten


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A stopped store: two streams, one with a group."""
    store = Store(tmp_path / "store")
    store.fill(b"s", 300)
    store.deliver(b"s", 100)
    store.fill(b"t", 5, db=3)
    store.checkpoint()
    store.engine.close()
    return store.directory


def lose_rows(directory: Path, table: str, count: int = 1) -> None:
    tables = Tables(directory, 1 << 28)
    with tables.env.begin(write=True) as txn:
        cursor = txn.cursor(tables.handles[table])
        cursor.first()
        for _ in range(count):
            cursor.delete()
    tables.close()


def log_of(directory: Path) -> Path:
    (log,) = (directory / LOG_DIRECTORY).glob("*.incr.aof")
    return log


# -- looking -----------------------------------------------------------------------------------------------------------


def test_sound_directory_is_called_sound(directory: Path) -> None:
    result = run("check", directory)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("sound")
    assert "2 streams, 305 entries" in result.stderr
    assert "1 group, 100 pending" in result.stderr


def test_violations_are_lines_and_status_1(directory: Path) -> None:
    lose_rows(directory, "pel_by_time")
    result = run("check", directory)
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith("pel_by_time: group 'g' of 's', the run up to 100-0: is missing at ")
    assert result.stderr.startswith("1 violation (")
    assert f"riverbed check --repair {directory}" in result.stderr


def test_many_violations_are_cut_short(directory: Path) -> None:
    lose_rows(directory, "nodes", 2)
    result = run("check", directory)
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 100)
    assert result.stderr.startswith("100 violations, and perhaps more")
    assert told_of(result, "to mend") == f"riverbed check --repair {directory}"
    assert "not readable" not in result.stderr and "0 files" not in result.stderr
    assert len(run("check", directory, "--limit", 0).stdout.splitlines()) > 200
    assert len(run("check", directory, "--limit", 7).stdout.splitlines()) == 7


def test_damage_names_file_and_byte(directory: Path) -> None:
    log = log_of(directory)
    data = bytearray(log.read_bytes())
    data[1000] ^= 4
    log.write_bytes(data)
    result = run("check", directory, "--json")
    (violation,) = json.loads(result.stdout)["violations"]
    assert (violation["table"], violation["file"], result.exit_code) == ("log", str(log), 1)
    assert violation["offset"] <= 1000
    assert f"log: {log} at byte {violation['offset']}: " in run("check", directory).stdout


def test_json_says_what_there_is(directory: Path) -> None:
    result = run("check", directory, "--deep", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["kind"], found["sound"], found["violations"], found["in_use"]) == ("store", True, [], False)
    assert (found["streams"], found["entries"], found["groups"], found["pending"]) == (2, 305, 1, 100)
    assert found["commands"] > 305
    assert found["path"] == str(directory)


def test_deep_finds_what_only_the_log_can_tell(directory: Path) -> None:
    tables = Tables(directory, 1 << 28)
    with tables.env.begin(write=True) as txn:
        key = entry_key(1, 7 << 64)
        row = txn.get(key, db=tables.handles["entries"])
        assert row is not None
        changed = bare_row(key, row).replace(b"\r\nv\r\n", b"\r\nw\r\n")
        txn.put(key, seal(key[:8], changed), db=tables.handles["entries"])
    tables.close()
    assert run("check", directory).exit_code == 0
    result = run("check", directory, "--deep")
    assert result.exit_code == 1
    assert result.stdout == "entries: 's' of database 0: the tables make XADD s 7-0 f w; the log makes XADD s 7-0 f v\n"
    assert "takes at most" in result.stderr
    assert list(directory.parent.glob(".riverbed-check-*")) == []


def test_deep_works_where_it_is_told_to(directory: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    result = run("check", directory, "--deep", "--work", work)
    assert result.exit_code == 0
    assert f" in {work}/.riverbed-check-" in result.stderr
    assert list(work.iterdir()) == []


def test_a_running_server_is_checked_as_well(start_riverbed: Callable[..., RiverbedServer]) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-1", "field", "value") for number in range(1, 300)])
        client.ask("SAVE")
        for arguments in ((), ("--deep",)):
            client.pipeline([("XADD", "s", "*", "field", "value")] * 50)
            result = run("check", server.directory, *arguments)
            assert (result.exit_code, result.stdout) == (0, ""), result.stderr
            assert "running: of the tables this is its last checkpoint" in result.stderr
        refused = run("check", server.directory, "--repair")
    assert refused.exit_code == 2
    assert "is in use by another process; stop its server first" in refused.stderr


# -- what cannot be checked --------------------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_checked_is_status_2(directory: Path, tmp_path: Path) -> None:
    tables = Tables(directory, 1 << 28)
    with tables.env.begin(write=True) as txn:
        txn.put(b"format_version", pack_row(0), db=tables.handles["meta"])
    tables.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for path, told in (
        (tmp_path / "none", "there is no "),
        (tmp_path / "empty", "holds no store: neither state/ nor appendonlydir/ is there"),
        (tmp_path / "file", "is not a directory"),
        (directory, f"has format version 0; this program reads {FORMAT_VERSION}"),
    ):
        for option in ("--deep", "--repair", "--json"):
            result = run("check", path, option)
            assert (result.exit_code, result.stdout) == (2, "")
            assert told in result.stderr


def test_too_little_space_for_the_fold_is_status_2(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.store.disk.files.OsFiles.free_bytes", lambda self, path: 1000)
    result = run("check", directory, "--deep")
    assert result.exit_code == 2
    assert "1,000 bytes free" in result.stderr
    assert run("check", directory).exit_code == 0


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_checked(directory: Path, tmp_path: Path) -> None:
    snapshot = take_snapshot(directory, tmp_path / "snapshot", program="test").path
    result = run("check", snapshot, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["kind"], found["sound"], found["entries"]) == (0, "snapshot", True, 305)
    data = bytearray((snapshot / "data.mdb").read_bytes())
    data[-1] ^= 1
    (snapshot / "data.mdb").write_bytes(data)
    result = run("check", snapshot)
    assert result.exit_code == 1
    assert f"snapshot: {snapshot / 'data.mdb'}: CRC-32C is " in result.stdout
    for option in ("--deep", "--repair"):
        assert run("check", snapshot, option).exit_code == 2


def test_a_snapshot_without_a_manifest_is_none(directory: Path, tmp_path: Path) -> None:
    snapshot = take_snapshot(directory, tmp_path / "snapshot", program="test").path
    (snapshot / "manifest.json").unlink()
    result = run("check", snapshot)
    assert result.exit_code == 2
    assert "a snapshot that was never finished" in result.stderr


# -- mending -----------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_found_and_cut_and_kept(directory: Path) -> None:
    log = log_of(directory)
    whole = log.read_bytes()
    log.write_bytes(whole + b"*3\r\n$4\r\nXA")
    result = run("check", directory)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"log: {log} at byte {len(whole)}: torn tail of 10 bytes")
    result = run("check", directory, "--repair", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["sound"], len(report["repaired"]), len(report["mended"])) == (0, True, 1, 1)
    assert Path(report["repaired"][0]["kept"]).read_bytes() == b"*3\r\n$4\r\nXA"
    assert log.read_bytes() == whole


def test_broken_tables_are_made_anew_and_the_old_ones_kept(directory: Path) -> None:
    lose_rows(directory, "entries", 3)
    result = run("check", directory, "--repair")
    assert result.exit_code == 0
    assert "repaired: made the tables again" in result.stderr
    assert (directory / "replaced" / "state" / "data.mdb").exists()
    assert run("check", directory, "--deep").exit_code == 0
    again = run("check", directory, "--repair")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr.startswith("sound")


@pytest.mark.parametrize("error", [RepairError("no"), OSError(28, "no room")])
def test_what_was_done_before_a_repair_failed_is_said(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    lose_rows(directory, "entries", 3)
    with log_of(directory).open("ab") as log:
        log.write(b"*3\r\n$4\r\nXA")

    def failed(_repair: Repair) -> Action:
        raise error

    monkeypatch.setattr(Repair, "_make_tables", failed)
    result = run("check", directory, "--repair", "--json")
    assert f"repaired: cut 10 bytes off {log_of(directory)}" in result.stderr
    if isinstance(error, RepairError):
        report = json.loads(result.stdout)
        assert (result.exit_code, report["sound"], len(report["repaired"])) == (1, False, 1)
        assert (report["mended"], report["not_repaired"]) == ([], "no")
    else:
        assert result.exit_code == 2
    monkeypatch.undo()
    assert run("check", directory, "--repair").exit_code == 0


def test_what_cannot_be_mended_says_what_a_person_can_do(directory: Path) -> None:
    log = log_of(directory)
    data = bytearray(log.read_bytes())
    data[1000] ^= 4
    log.write_bytes(data)
    looked = run("check", directory)
    assert "stop the server" not in looked.stderr
    cure = f"move {directory / LOG_DIRECTORY} away and run `riverbed check --repair {directory}`"
    assert "without the writes that only the log has, " + cure in told_of(looked, "to mend")
    result = run("check", directory, "--repair")
    assert result.exit_code == 1
    assert "not repaired: the log is broken" in result.stderr
    assert told_of(looked, "to mend") in result.stderr
    assert log.read_bytes() == data
    shutil.move(directory / LOG_DIRECTORY, directory / "damaged-log")
    told = run("check", directory).stderr
    assert f"to mend   riverbed check --repair {directory}" in told and "stop the server" not in told
    result = run("check", directory, "--repair")
    assert result.exit_code == 0
    assert "made a new log out of the tables: 305 entries" in result.stderr
    assert run("check", directory, "--deep").exit_code == 0


def told_of(result: Result, name: str) -> str:
    """What the summary says behind `name`."""
    (line,) = (line for line in result.stderr.splitlines() if line.lstrip().startswith(name))
    return line.lstrip().removeprefix(name).strip()


@pytest.mark.parametrize("how", ["flipped", "deleted"])
def test_a_log_whose_manifest_is_damaged_is_not_called_empty(directory: Path, how: str) -> None:
    manifest = directory / LOG_DIRECTORY / LOG_MANIFEST
    data = bytearray(manifest.read_bytes())
    data[10] ^= 4
    manifest.unlink()
    if how == "flipped":
        manifest.write_bytes(data)
    result = run("check", directory)
    assert (result.exit_code, told_of(result, "log")) == (1, "not readable")
    assert f"move {directory / LOG_DIRECTORY} away" in told_of(result, "to mend")
    assert json.loads(run("check", directory, "--json").stdout)["log_bytes"] is None


def test_beside_a_server_a_damaged_log_is_mended_by_the_server(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"scrub-interval": 0})
    with server.client() as client:
        fill(client, "s", 300)
        client.ask("SAVE")
        log = log_of(server.directory)
        sound = log.read_bytes()
        with log.open("r+b") as file:
            file.seek(1000)
            file.write(bytes((sound[1000] ^ 4,)))
        result = run("check", server.directory)
        assert "send BGREWRITEAOF" in told_of(result, "to mend")
    rewritten(server)
    assert "\nlog: " not in f"\n{run('check', server.directory).stdout}"
    assert server.stop() == 0
    assert run("check", server.directory, "--repair").exit_code == 0  # it gives up the end of the former log


def test_a_folder_of_snapshots_is_said_to_be_one(directory: Path, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    take_snapshot(directory, folder / "first", program="test")
    result = run("check", folder)
    assert (result.exit_code, f"{folder} holds snapshots: name one of them" in result.stderr) == (2, True)


def test_help_lists_the_subcommands_and_version_is_told() -> None:
    assert "check" in run("--help").stdout
    assert run("--version").stdout == f"riverbed, version {VERSION}\n"


# -- at a terminal -----------------------------------------------------------------------------------------------------


def test_at_a_terminal_long_findings_go_on_below(directory: Path) -> None:
    lose_rows(directory, "pel_by_time")
    status, screen = on_terminal("check", directory)
    assert status == 1
    lines = [line.rstrip() for line in screen.replace("\r", "\n").split("\n") if line.strip()]
    place = "pel_by_time: group 'g' of 's', the run up to 100-0"
    number = lines.index(place)
    assert lines[number + 1].startswith("   is missing at ")
    assert all(len(line) <= 80 for line in lines if str(directory) not in line)


def test_at_a_terminal_a_sound_store_is_shown_in_a_few_aligned_lines(directory: Path) -> None:
    status, screen = on_terminal("check", directory, "--deep")
    assert status == 0
    for line in (
        "  tables    2 streams, 305 entries",
        "  groups    1 group, 100 pending",
        "  log       ",
        "  deep      ",
    ):
        assert line in screen
