"""RIVERBED SNAPSHOT on a real server, under load, and when things go wrong."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.background import snapshot_worker
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk import removal
from riverbed.store.disk.removal import PIECE_BYTES
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, LOG_FILE
from riverbed.store.snapshot.reader import Snapshot, list_snapshots, open_snapshot
from riverbed.store.snapshot.writer import WORKING_PREFIX
from riverbed.store.tables.environment import Tables
from riverbed.tools.sidecar.sidecar import stream_columns
from tests.conftest import broken_invariants
from tests.support.faults.disks import small_tmpfs
from tests.support.faults.gate import Gate, child_of
from tests.support.raw import Node, RawClient, parse
from tests.support.servers import RiverbedServer
from tests.support.store.stores import Store, dump_database
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import process_ended, until

StartRiverbed = Callable[..., RiverbedServer]
READ = ("XREADGROUP", "GROUP", "g")


def fill(server: RiverbedServer, count: int = 2000) -> None:
    with server.client() as client:
        for start in range(1, count + 1, 1000):
            client.pipeline([("XADD", "s", f"{start + number}-0", "field", "v" * 50) for number in range(1000)])


def as_dict(reply: Node) -> dict[str, str]:
    assert reply.kind == "*", reply
    return {name.text.decode(): value.text.decode() for name, value in reply.pairs()}


def take(client: RawClient, *words: str) -> dict[str, str]:
    return as_dict(client.tree("RIVERBED", "SNAPSHOT", *words))


def folder(server: RiverbedServer) -> Path:
    return server.directory / "snapshots"


# -- what is answered --------------------------------------------------------------------------------------------------


def test_the_client_is_told_where_it_is_and_of_what_offset(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        told = take(client)
        offset = client.info("persistence")["riverbed_log_offset"]
    snapshot = open_snapshot(Path(told["path"]), verify=True)
    assert snapshot.path == folder(riverbed) / told["name"]
    assert (told["offset"], told["entries"], told["streams"]) == (offset, "2000", "1")
    assert snapshot.manifest.offset == int(offset)


def test_what_ran_before_is_in_it(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.send_bytes(b"XADD a 1-1 f v\r\nXADD b 1-1 f v\r\nRIVERBED SNAPSHOT both\r\nXADD c 1-1 f v\r\n")
        for _ in range(2):
            client.reply()
        assert b"both" in client.reply()
        client.reply()
    keys = [stream.key for stream in open_snapshot(folder(riverbed) / "both").streams()]
    assert keys[:2] == [b"a", b"b"]


def test_a_server_that_never_wrote_has_an_empty_one(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert take(client)["streams"] == "0"


def test_a_given_name_is_taken_and_not_twice(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert take(client, "monday")["path"] == str(folder(riverbed) / "monday")
        assert client.ask("RIVERBED", "SNAPSHOT", "monday").startswith(b"-ERR no snapshot: ")
        assert take(client, "tuesday")["name"] == "tuesday"


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "a b", "\xff", "..", "/etc/x", "x" * 300])
def test_a_name_that_is_a_path_is_refused(riverbed: RiverbedServer, name: str) -> None:
    with riverbed.client() as client:
        assert client.ask("RIVERBED", "SNAPSHOT", name).startswith(b"-ERR a snapshot's name has letters")
    assert not folder(riverbed).exists()


def test_the_list_has_them_in_order(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert client.ask("RIVERBED", "SNAPSHOTS") == b"*0\r\n"
        for name in ("b", "a"):
            take(client, name)
        found = [as_dict(child) for child in client.tree("RIVERBED", "SNAPSHOTS").children or ()]
    assert [told["name"] for told in found] == ["b", "a"]


def test_keep_deletes_the_oldest_without_a_given_name(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        take(client, "named")
        names = []
        for _ in range(4):
            client.ask("XADD", "s", "*", "f", "v")
            names.append(take(client, "KEEP", "2")["name"])
    assert [snapshot.name for snapshot in list_snapshots(folder(riverbed))] == ["named", *names[2:]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("KEEP", "0"), b"-ERR KEEP takes"),
        (("KEEP", "-1"), b"-ERR KEEP takes"),
        (("KEEP", "x"), b"-ERR value is not an integer"),
        (("a", "b"), b"-ERR unknown subcommand or wrong number"),
        (("keep",), b"-ERR unknown subcommand or wrong number"),
        (("KEEP", "1", "x"), b"-ERR unknown subcommand or wrong number"),
    ],
)
def test_other_words_are_refused(riverbed: RiverbedServer, words: tuple[str, ...], told: bytes) -> None:
    with riverbed.client() as client:
        assert client.ask("RIVERBED", "SNAPSHOT", *words).startswith(told)
        assert client.ask("RIVERBED", "NONE").startswith(b"-ERR unknown subcommand 'NONE'. Try RIVERBED HELP.")
        assert b"SNAPSHOT [name | KEEP count]" in client.ask("RIVERBED", "HELP")


def test_a_transaction_takes_none(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.ask("MULTI")
        assert client.ask("RIVERBED", "SNAPSHOT").startswith(b"-ERR Command not allowed inside a transaction")
        assert client.ask("EXEC").startswith(b"-EXECABORT")


# -- while it is made --------------------------------------------------------------------------------------------------


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """To be asked for before the server is."""
    place = tmp_path / "gate"
    place.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(place))
    return Gate(place, "riverbed.server.background.snapshot_worker")


def wait_for_end(client: RawClient) -> None:
    until(lambda: client.info("persistence")["riverbed_snapshot_in_progress"] == "0", "the end of the snapshot")


def test_the_server_serves_meanwhile_and_refuses_a_second_one(gate: Gate, riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as first, riverbed.client() as other:
        first.send("RIVERBED", "SNAPSHOT")
        until(
            lambda: other.info("persistence")["riverbed_snapshot_in_progress"] == "1", "the beginning of the snapshot"
        )
        assert other.ask("XADD", "t", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        assert other.ask("RIVERBED", "SNAPSHOT") == b"-ERR a snapshot is under way already\r\n"
        told = other.info("persistence")
        assert (told["riverbed_snapshot_in_progress"], told["riverbed_snapshot_step"]) == ("1", "starting")
        assert int(told["riverbed_snapshot_current_time_sec"]) >= 0
        gate.open()
        made = as_dict(parse(first.reply()))
        told = other.info("persistence")
    assert (told["riverbed_snapshot_in_progress"], told["riverbed_snapshot_last_status"]) == ("0", "ok")
    assert (told["riverbed_snapshot_last_name"], told["riverbed_snapshot_last_offset"]) == (
        made["name"],
        made["offset"],
    )


def test_a_client_that_leaves_does_not_end_it(gate: Gate, riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as first:
        first.send("RIVERBED", "SNAPSHOT", "left")
        child_of(riverbed)
    gate.open()
    with riverbed.client() as other:
        wait_for_end(other)
    assert open_snapshot(folder(riverbed) / "left", verify=True).manifest.entries == 2000


def test_a_client_that_is_unblocked_does_not_end_it_either(gate: Gate, riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as first, riverbed.client() as other:
        number = first.tree("CLIENT", "ID").text
        first.send("RIVERBED", "SNAPSHOT", "left")
        child_of(riverbed)
        assert other.ask("CLIENT", "UNBLOCK", number, "ERROR") == b":1\r\n"
        assert first.reply().startswith(b"-UNBLOCKED")
        gate.open()
        wait_for_end(first)
        assert first.ask("PING") == b"+PONG\r\n"
    assert (folder(riverbed) / "left").exists()


def test_a_process_that_is_killed_is_told_and_leaves_nothing(gate: Gate, riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.send("RIVERBED", "SNAPSHOT")
        os.kill(child_of(riverbed), signal.SIGKILL)
        assert client.reply() == b"-ERR no snapshot: its process was killed by signal 9\r\n"
        assert client.info("persistence")["riverbed_snapshot_last_status"] == "err"
        assert not folder(riverbed).exists()
        client.send("RIVERBED", "SNAPSHOT")
        gate.open()
        assert as_dict(parse(client.reply()))["entries"] == "2000"


def test_what_a_killed_one_left_is_cleared_away(riverbed: RiverbedServer) -> None:
    left = folder(riverbed) / ".temp-snapshot-1"
    left.mkdir(parents=True)
    (left / "data.mdb").write_bytes(b"x")
    with riverbed.client() as client:
        made = take(client)
    assert [path.name for path in folder(riverbed).iterdir()] == [made["name"]]


def test_a_start_clears_away_what_a_killed_server_left(riverbed: RiverbedServer) -> None:
    left = folder(riverbed) / ".temp-snapshot-1"
    left.mkdir(parents=True)
    (left / "data.mdb").write_bytes(b"x")
    riverbed.restart()
    until(lambda: not left.exists(), "the end of what was left")


def test_a_server_that_stops_ends_its_snapshot(gate: Gate, riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.send("RIVERBED", "SNAPSHOT")
        pid = child_of(riverbed)
        riverbed.stop()
    process_ended(pid)  # although the gate stays closed
    assert not folder(riverbed).exists()


def test_a_server_that_stops_frees_half_a_snapshot_without_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "PAUSE_S", 20.0)
    half = tmp_path / "snapshots" / f"{WORKING_PREFIX}1"
    half.mkdir(parents=True)
    with (half / DATA_NAME).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * PIECE_BYTES + 1)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        clearing = asyncio.create_task(ticks.server.snapshots._clear_leftovers())
        await asyncio.sleep(0)
        ticks.server.tasks.stopping.set()
        await asyncio.wait_for(clearing, 15)
        assert not half.exists()
        await ticks.server.end_work()
        ticks.close()

    in_loop(body())


def test_a_server_that_is_killed_leaves_nothing_half_made(gate: Gate, riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.send("RIVERBED", "SNAPSHOT")
        pid = child_of(riverbed)
        riverbed.kill()
    gate.open()
    process_ended(pid)
    assert all(open_snapshot(path, verify=True) for path in folder(riverbed).glob("*"))


# -- columns -----------------------------------------------------------------------------------------------------------


def columns_of(client: RawClient) -> tuple[str, int]:
    told = client.info("persistence")
    return told["riverbed_snapshot_columns"], int(told["riverbed_snapshot_columns_bytes"])


def test_a_snapshot_has_columns_when_the_setting_says_so(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        without = take(client)
        assert columns_of(client) == ("none", 0)
        assert client.ask("CONFIG", "SET", "snapshot-columns", "yes") == b"+OK\r\n"
        told = take(client)
        state, size = columns_of(client)
    assert not Path(without["path"], "columns").exists()
    assert stream_columns(open_snapshot(Path(told["path"]), verify=True), 0, b"s").entries == 2000
    assert (state, size) == ("ok", sum(file.stat().st_size for file in Path(told["path"], "columns").rglob("*.*")))


@pytest.fixture
def with_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_riverbed: StartRiverbed) -> RiverbedServer:
    """A server whose processes that write columns never begin."""
    place = tmp_path / "gate"
    place.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(place))
    Gate(place, "riverbed.tools.sidecar.beside")
    server = start_riverbed(options={"snapshot-columns": "yes"})
    fill(server)
    return server


def processes_of_columns(server: RiverbedServer) -> tuple[int, int]:
    """-> the process that takes the snapshot, and the one that it has started to write the columns"""
    until(lambda: server.children("sidecar.worker"), "the process that takes a snapshot with columns")
    taker = server.children("sidecar.worker")[0]
    path = Path(f"/proc/{taker}/task/{taker}/children")
    until(lambda: bool(path.read_text()), "the process that writes columns")
    return taker, int(path.read_text())


def end_of_gated(pid: int) -> None:
    """End a process that never began, and so cannot know that nobody wants its work any more."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    process_ended(pid)


def test_a_snapshot_whose_columns_fail_is_whole_without_them(with_columns: RiverbedServer) -> None:
    server = with_columns
    with server.client() as client:
        client.send("RIVERBED", "SNAPSHOT", "monday")
        os.kill(processes_of_columns(server)[1], signal.SIGKILL)
        assert as_dict(parse(client.reply()))["entries"] == "2000"
        assert columns_of(client) == ("err", 0)
        assert client.info("persistence")["riverbed_snapshot_last_status"] == "ok"
    assert open_snapshot(folder(server) / "monday", verify=True).manifest.entries == 2000
    names = sorted(path.name for path in (folder(server) / "monday").iterdir())
    assert names == ["data.mdb", "manifest.json", "streams.jsonl"]
    assert "has no columns: their process has ended" in server.log_text()


def test_a_snapshot_whose_process_is_killed_ends_before_that_of_its_columns(with_columns: RiverbedServer) -> None:
    server = with_columns
    with server.client() as client:
        client.send("RIVERBED", "SNAPSHOT", "monday")
        taker, writer = processes_of_columns(server)
        os.kill(taker, signal.SIGKILL)
        assert b"its process was killed by signal 9" in client.reply()
        assert client.info("persistence")["riverbed_snapshot_last_status"] == "err"
    assert list(folder(server).glob("*")) == []
    end_of_gated(writer)


def test_a_server_that_stops_leaves_neither_snapshot_nor_columns(with_columns: RiverbedServer) -> None:
    with with_columns.client() as client:
        client.send("RIVERBED", "SNAPSHOT", "monday")
        taker, writer = processes_of_columns(with_columns)
        with_columns.stop()
    process_ended(taker)
    end_of_gated(writer)
    assert list(folder(with_columns).glob("*")) == []


def test_columns_that_no_library_can_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        refused, setting = await ticks.ask(client, "CONFIG SET snapshot-columns yes", "CONFIG GET snapshot-columns")
        assert b"pyarrow is not installed" in refused
        assert setting.endswith(b"$2\r\nno\r\n")
        ticks.close()

    monkeypatch.setattr("riverbed.server.background.snapshots.find_spec", lambda name: None)
    in_loop(body())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty tmpfs of 24 MB."""
    with small_tmpfs(tmp_path / "disk", 24 << 20) as disk:
        yield disk


@pytest.mark.needs_root
def test_a_disk_too_small_for_it_is_said_and_the_server_goes_on(small_disk: Path, tmp_path: Path) -> None:
    with RiverbedServer(small_disk, tmp_path / "logs", {"disk-reserve-bytes": 1 << 20}) as server:
        fill(server, 80_000)
        with server.client() as client:
            assert client.ask("RIVERBED", "SNAPSHOT").startswith(b"-ERR no snapshot: not enough space in ")
            assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
        assert not folder(server).exists()
        server.stop()
    assert broken_invariants(small_disk) == []


# -- under load --------------------------------------------------------------------------------------------------------


def write_without_end(server: RiverbedServer, stop: threading.Event, number: int) -> None:
    """Entries, deliveries, acknowledgements, deletions and trims, pipelined."""
    with server.client() as client:
        key = f"s{number}"
        client.ask("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
        turn = 0
        while not stop.is_set():
            turn += 1
            client.pipeline([("XADD", key, "*", "turn", str(turn), "pad", "x" * 40) for _ in range(50)])
            ids = [
                entry.children[0].text
                for stream in client.tree(*READ, f"c{turn % 3}", "COUNT", "30", "STREAMS", key, ">").children or ()
                for entry in (stream.children or ())[1].children or ()
                if entry.children
            ]
            if ids:
                client.pipeline([("XACK", key, "g", *ids[::3]), ("XDEL", key, *ids[1::5])])
            if turn % 20 == 0:
                client.ask("XTRIM", key, "MAXLEN", "~", "2000")


def test_a_snapshot_under_load_is_the_log_up_to_its_offset(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = start_riverbed(options={"auto-aof-rewrite-percentage": 0})  # the log is cut below, and has to be one file
    fill(server, 20_000)
    stop = threading.Event()
    writers = [threading.Thread(target=write_without_end, args=(server, stop, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        with server.client(timeout_s=120) as client:
            taken = [take(client) for _ in range(4)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    server.stop()
    offsets = [int(told["offset"]) for told in taken]
    assert offsets == sorted(set(offsets))
    for number, told in enumerate(taken):
        snapshot = open_snapshot(Path(told["path"]), verify=True)
        assert snapshot.manifest.offset == int(told["offset"])
        frozen = contents_of_tables(snapshot, tmp_path / f"thawed-{number}")
        assert frozen == contents_of_log(server.directory, snapshot, tmp_path / f"replayed-{number}")
        assert sum(stream["length"] for stream in frozen[0].values()) == int(told["entries"])


def contents_of_tables(snapshot: Snapshot, place: Path) -> dict[int, dict[bytes, Any]]:
    """What clients would see in a snapshot."""
    (place / "state").mkdir(parents=True)
    shutil.copy(snapshot.path / DATA_NAME, place / "state")
    tables = Tables(place, 1 << 30)
    txn = WriteTxn(tables)
    found = {db.number: dump_database(db) for db in txn.databases if db.size}
    txn.abort()
    tables.close()
    return found


def contents_of_log(directory: Path, snapshot: Snapshot, place: Path) -> dict[int, dict[bytes, Any]]:
    """What a replay of the log makes, cut where the snapshot says it ends."""
    shutil.copytree(directory / LOG_DIRECTORY, place / LOG_DIRECTORY)
    position = snapshot.manifest.position
    log = place / LOG_DIRECTORY / f"{LOG_FILE}.{position.file_seq}.incr.aof"
    os.truncate(log, position.position)
    store = Store(place, map_bytes=1 << 30)
    assert store.engine.log.end.offset == snapshot.manifest.offset
    found = store.dump()
    store.engine.close()
    return found


def test_a_snapshot_is_told_although_the_older_ones_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    store = Store(tmp_path / "store")
    store.add(b"s", "1-0")
    store.checkpoint()
    store.kill()
    monkeypatch.setattr(snapshot_worker, "delete_old", fails)
    asked = argparse.Namespace(directory=store.directory, name=None, keep=1, leave_bytes=0)
    made, not_deleted = snapshot_worker.take(asked, lambda *_: None)
    assert open_snapshot(Path(made["path"])).manifest.entries == 1
    assert not_deleted == "[Errno 5] Input/output error"
