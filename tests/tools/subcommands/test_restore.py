from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from riverbed.store.errors import CorruptionError
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, STREAMS_NAME
from riverbed.store.snapshot.manifest import SnapshotManifest, encode_manifest
from riverbed.store.snapshot.reader import open_snapshot
from tests.support import program
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer
from tests.support.store.forged import LENGTHS, forge_length, forge_page

StartRiverbed = Callable[..., RiverbedServer]
READ = ("XREADGROUP", "GROUP", "g", "alice", "COUNT", "50", "STREAMS", "s", ">")


run = partial(program.run, "restore")


def told(client: RawClient) -> list[bytes]:
    """What XINFO, XPENDING and XRANGE say of the stream; idle times, which go on, are left out."""
    full = client.tree("XINFO", "STREAM", "s", "FULL", "COUNT", "0")
    pending = client.tree("XPENDING", "s", "g", "-", "+", "1000").children or ()
    rows = [node.with_children(child for at, child in enumerate(node.children or ()) if at != 2) for node in pending]
    return [str(full).encode(), *(str(row).encode() for row in rows), client.ask("XRANGE", "s", "-", "+")]


@pytest.fixture
def taken(start_riverbed: StartRiverbed) -> tuple[Path, list[bytes]]:
    """A snapshot, and what clients were told of the store it was taken of."""
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "field", "value") for number in range(1, 300)])
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        client.ask(*READ)
        client.ask("XACK", "s", "g", "3-0", "4-0")
        client.ask("XDEL", "s", "7-0", "299-0")
        client.ask("RIVERBED", "SNAPSHOT", "monday")
        before = told(client)
    return server.directory / "snapshots" / "monday", before


def test_a_server_starts_on_it_and_tells_the_same(
    taken: tuple[Path, list[bytes]], start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    snapshot, before = taken
    assert program.report("restore", snapshot, tmp_path / "restored")["entries"] == 297
    server = start_riverbed(tmp_path / "restored")
    with server.client() as client:
        assert told(client) == before
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")


@pytest.mark.parametrize("command", ["restore", "stat", "dump"])
def test_forged_pages_never_reach_lmdb(taken: tuple[Path, list[bytes]], tmp_path: Path, command: str) -> None:
    snapshot, _ = taken
    forge_page(snapshot)
    words = {"restore": [snapshot, tmp_path / "new"], "stat": [snapshot], "dump": [snapshot, "s"]}[command]
    result = program.run(command, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a page is damaged: " in " ".join(result.stderr.split())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("length", LENGTHS, ids=lambda length: length[:32])
def test_a_length_that_no_stream_can_have_is_not_believed(
    taken: tuple[Path, list[bytes]], tmp_path: Path, length: str
) -> None:
    snapshot, _ = taken
    forge_length(snapshot, length)
    with pytest.raises(CorruptionError, match="line 1: "):
        list(open_snapshot(snapshot).streams())
    # these count what the tables hold
    for command, words, name in (("restore", [tmp_path / "new"], "entries"), ("stat", [], "length")):
        assert program.report(command, snapshot, *words)[name] == 297
    result = program.run("check", snapshot)
    assert result.exit_code == 1
    assert f"{STREAMS_NAME}: line 1: " in "".join(result.output.splitlines())


FORGED: dict[str, Callable[[SnapshotManifest], SnapshotManifest]] = {
    "entries": lambda manifest: replace(manifest, entries=1 << 50),
    "streams": lambda manifest: replace(manifest, streams=manifest.streams + 1),
    "rows of entries": lambda manifest: replace(manifest, rows=manifest.rows | {"entries": 1}),
    "position": lambda manifest: replace(manifest, position=manifest.position._replace(offset=1 << 40)),
    "replication_id": lambda manifest: replace(manifest, replication_id="f" * 40),
    "store_id": lambda manifest: replace(manifest, store_id="f" * 32),
}


def forge(snapshot: Path, what: str) -> None:
    """Give the snapshot a manifest with a sound checksum that lies."""
    forged = FORGED[what](open_snapshot(snapshot).manifest)
    (snapshot / MANIFEST_NAME).write_bytes(encode_manifest(forged))


@pytest.mark.parametrize("what", FORGED)
def test_what_a_forged_manifest_says_is_not_believed(
    taken: tuple[Path, list[bytes]], tmp_path: Path, what: str
) -> None:
    snapshot, _ = taken
    forge(snapshot, what)
    result = run(snapshot, tmp_path / "new", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"says of {what} " in " ".join(result.stderr.split())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["stat", "dump"])
def test_a_forged_manifest_is_not_read_past(taken: tuple[Path, list[bytes]], command: str) -> None:
    snapshot, _ = taken
    forge(snapshot, "position")
    result = program.run(command, snapshot, *(["s"] if command == "dump" else []))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "says of position " in " ".join(result.stderr.split())


@pytest.mark.parametrize("database", [0, 3])
def test_a_replica_on_it_is_sent_only_what_has_happened_since(
    start_riverbed: StartRiverbed, tmp_path: Path, database: int
) -> None:
    primary = start_riverbed()
    with primary.client() as client:
        client.ask("SELECT", database)
        client.pipeline([("XADD", "s", f"{number}-0", "field", "value") for number in range(1, 300)])
        client.ask("RIVERBED", "SNAPSHOT", "monday")
        client.ask("XADD", "s", "300-0", "field", "value")
        assert run(primary.directory / "snapshots" / "monday", tmp_path / "restored").exit_code == 0
        replica = start_riverbed(tmp_path / "restored", {"replicaof": f"127.0.0.1 {primary.port}"})
        assert client.ask("WAIT", "1", "60000") == b":1\r\n"
        text = client.ask("INFO", "stats")
        assert b"sync_full:0\r\n" in text
        assert b"sync_partial_ok:1\r\n" in text
    with replica.client() as client:
        client.ask("SELECT", database)
        assert client.ask("XLEN", "s") == b":300\r\n"


def test_the_report_for_people_says_what_was_made(taken: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    (tmp_path / "restored.partial-0123").mkdir()
    result = run(taken[0], tmp_path / "restored")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"made {tmp_path / 'restored'}")
    assert "restored.partial-0123 was half made by a command that was killed" in result.stderr


def test_what_is_there_is_not_written_over(taken: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("")
    result = run(taken[0], tmp_path / "full")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no file is overwritten" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("none", "there is no snapshot"),
        ("unfinished", "never finished"),
        ("foreign", "not the manifest of a snapshot of Riverbed"),
        ("cut", "bytes long; it must be"),
        ("flipped", "CRC-32C"),
    ],
)
def test_what_is_no_whole_snapshot_is_refused_and_nothing_is_left(
    taken: tuple[Path, list[bytes]], tmp_path: Path, damage: str, words: str
) -> None:
    snapshot, _ = taken
    data = bytearray((snapshot / DATA_NAME).read_bytes())
    match damage:
        case "none":
            snapshot = snapshot.with_name("other")
        case "unfinished":
            (snapshot / MANIFEST_NAME).unlink()
        case "foreign":
            (snapshot / MANIFEST_NAME).write_text("{}")
        case "cut":
            (snapshot / DATA_NAME).write_bytes(data[:-1])
        case "flipped":
            data[9000] ^= 1
            (snapshot / DATA_NAME).write_bytes(data)
    place = tmp_path / "place"
    place.mkdir()
    result = run(snapshot, place / "restored")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in " ".join(result.stderr.split())
    assert list(place.iterdir()) == []
