"""Damaged tables are made again of the log while the server serves, and clients notice nothing but right answers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import lmdb
import pytest

from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, REPAIR_DIRECTORY, STATE_DIRECTORY
from tests.conftest import StartRiverbed, broken_invariants
from tests.support.faults.disks import small_tmpfs, unmount
from tests.support.faults.gate import Gate
from tests.support.program import run
from tests.support.raw import Node, parse
from tests.support.replicas import fill, follow, info, until_level
from tests.support.servers import RiverbedServer
from tests.support.waiting import process_ended, rewritten, until

VALUE = b"a value to be found"
WRONG = b"c" + VALUE[1:]
DAMAGED = b'-ERR entry 9999999999999-7 of key "s" in database 0 is damaged'
ASK = ("XRANGE", "s", "9999999999999-7", "9999999999999-7")
MODULE = "riverbed.server.background.integrity.repair_worker"
QUIET = {"scrub-interval": 0, "auto-repair": "no"}


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(VALUE, WRONG))


def undo_damage(server: RiverbedServer) -> None:
    """Stop a server that is not repaired, and take the damage back."""
    server.stop()
    for path in (
        server.directory / STATE_DIRECTORY / DATA_NAME,
        *(server.directory / LOG_DIRECTORY).glob("*.incr.aof"),
    ):
        path.write_bytes(path.read_bytes().replace(WRONG, VALUE))


def with_damage(start: StartRiverbed, **options: object) -> RiverbedServer:
    """A server with a base, more log, groups, and a damaged entry."""
    server = start(options={**QUIET, **options})
    with server.client() as client:
        fill(client, "s", 2000)
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", "500", "STREAMS", "s", ">")
        client.ask("XADD", "s", "9999999999999-7", "field", VALUE)
    server.stop()
    damage(server.directory / STATE_DIRECTORY / DATA_NAME)
    server.start()
    return server


def as_dict(reply: Node) -> dict[str, str]:
    """The fields of a map."""
    return {name.text.decode(): value.text.decode() for name, value in reply.pairs()}


def require_whole(server: RiverbedServer) -> None:
    """The entry is right, nothing of the repair is left, and what a stop leaves is sound."""
    with server.client() as client:
        assert VALUE in client.ask(*ASK)
        assert client.ask("XPENDING", "s", "g").startswith(b"*4\r\n:500\r\n")
    until(lambda: not (server.directory / REPAIR_DIRECTORY).exists(), "the end of the repair's files")
    assert server.stop() == 0


def test_a_client_has_the_tables_made_again(start_riverbed: StartRiverbed) -> None:
    server = with_damage(start_riverbed)
    with server.client(timeout_s=600) as client:
        assert client.ask(*ASK).startswith(DAMAGED)
        client.ask("XADD", "s", "9999999999999-8", "f", "v")
        made = as_dict(client.tree("RIVERBED", "REPAIR"))
        assert int(made["offset"]) == int(info(server)["master_repl_offset"])
        assert client.ask("XLEN", "s") == b":2002\r\n"
    found = info(server, "persistence")
    assert (found["riverbed_repairs"], found["riverbed_repair_last_status"]) == ("1", "ok")
    assert found["riverbed_repair_in_progress"] == "0"
    require_whole(server)


def test_what_is_written_meanwhile_is_in_the_tables(
    start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    gate = Gate(tmp_path, MODULE)
    server = with_damage(start_riverbed)
    added = 0
    stopped = threading.Event()

    def write() -> None:
        nonlocal added
        with server.client() as client:
            while not stopped.is_set():
                replies = client.pipeline([("XADD", "t", "*", "f", str(added + number)) for number in range(50)])
                assert all(reply.startswith(b"$") for reply in replies)
                added += 50
                stopped.wait(0.02)  # the process must be able to catch up, on a busy machine too

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with server.client(timeout_s=600) as client, server.client() as reader:
            client.send("RIVERBED", "REPAIR")
            until(lambda: info(server, "persistence")["riverbed_repair_in_progress"] == "1", "a repair")
            assert reader.ask("RIVERBED", "REPAIR") == b"-ERR a repair is under way already\r\n"
            reader.ask("CONFIG", "SET", "log-segment-bytes", "65536")  # the log goes on in further files
            before = added
            until(lambda: added > before + 2000, "writes before the process begins")
            assert reader.ask("BGREWRITEAOF").startswith(b"+")
            gate.open()
            assert "offset" in as_dict(parse(client.reply()))
    finally:
        stopped.set()
        thread.join()
    with server.client() as client:
        assert client.ask("XLEN", "t") == b":%d\r\n" % added
    require_whole(server)


@pytest.mark.parametrize("by", ["a scrub", "a command"])
def test_damage_that_is_found_is_mended(start_riverbed: StartRiverbed, by: str) -> None:
    server = with_damage(start_riverbed)
    with server.client() as client:
        client.ask("CONFIG", "SET", "auto-repair", "yes")
        if by == "a scrub":
            client.ask("CONFIG", "SET", "scrub-interval", "1")
        else:
            assert client.ask(*ASK).startswith(DAMAGED)
        until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", f"a repair\n{server.log_tail()}")
    if by == "a scrub":
        scrubs = int(info(server, "persistence")["riverbed_scrubs"])
        until(lambda: int(info(server, "persistence")["riverbed_scrubs"]) > scrubs + 1, "a scrub of the new tables")
        assert "damage on the disk: " in server.log_text()
    assert info(server, "persistence")["riverbed_scrub_damaged_files"] == "0"
    assert info(server, "persistence")["riverbed_repairs"] == "1"
    require_whole(server)


def test_a_damaged_log_is_made_again_of_the_tables(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"scrub-interval": 1})
    with server.client() as client:
        fill(client, "s", 2000)
    rewritten(server)
    server.stop()
    (path,) = (server.directory / LOG_DIRECTORY).glob("*.base.aof")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    server.start()
    until(lambda: info(server, "persistence")["aof_rewrites"] != "0", f"a rewrite\n{server.log_tail()}")
    until(lambda: info(server, "persistence")["riverbed_scrub_damaged_files"] == "0", "the end of the damage")


def test_damage_in_both_halves_is_an_error_and_changes_nothing(start_riverbed: StartRiverbed) -> None:
    server = with_damage(start_riverbed)
    (log,) = (server.directory / LOG_DIRECTORY).glob("*.incr.aof")
    damage(log)
    with server.client() as client:
        reply = client.ask("RIVERBED", "REPAIR")
        assert reply.startswith(b"-ERR the tables were not repaired: "), reply
        assert log.name.encode() in reply
        assert client.ask(*ASK).startswith(DAMAGED)
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
    assert info(server, "persistence")["riverbed_repair_last_status"] == "err"
    assert log.name in info(server, "persistence")["riverbed_repair_last_error"]
    until(lambda: not (server.directory / REPAIR_DIRECTORY).exists(), "the end of the repair's files")
    undo_damage(server)


def test_a_replica_with_damage_in_both_halves_takes_everything_from_its_primary(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed(options=QUIET)
    replica = start_riverbed(options=QUIET)
    with primary.client() as client:
        follow(replica, primary.port)
        fill(client, "s", 2000)
        client.ask("XADD", "s", "9999999999999-7", "field", VALUE)
        until_level(primary, replica)
        replica.stop()
        damage(replica.directory / STATE_DIRECTORY / DATA_NAME)
        replica.start()
        follow(replica, primary.port)
        (log,) = (replica.directory / LOG_DIRECTORY).glob("*.incr.aof")
        damage(log)
        syncs = int(info(primary, "stats")["sync_full"])
    with replica.client() as client:
        assert client.ask(*ASK).startswith(DAMAGED)
        assert b"the primary is asked for everything" in client.ask("RIVERBED", "REPAIR")
    until(lambda: int(info(primary, "stats")["sync_full"]) == syncs + 1, "a full sync")
    until(lambda: not (log.exists()), "the end of the damaged log")
    until_level(primary, replica)
    with replica.client() as client:
        assert VALUE in client.ask(*ASK)


@pytest.mark.parametrize("end", ["child", "kill", "stop"])
def test_a_repair_that_is_ended_leaves_the_tables_as_they_were(
    start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    gate = Gate(tmp_path, MODULE)
    server = with_damage(start_riverbed)
    with server.client() as client:
        client.send("RIVERBED", "REPAIR")
        until(lambda: server.children(MODULE), "the process of a repair")
        (child,) = server.children(MODULE)
        (server.directory / REPAIR_DIRECTORY / STATE_DIRECTORY).mkdir(parents=True)
        if end == "child":
            os.kill(child, signal.SIGKILL)
            assert re.match(rb"-ERR the tables were not repaired: .* killed by signal 9", client.reply())
        elif end == "kill":
            server.kill()
            gate.open()  # the process finds that its server has gone
        else:
            assert server.stop() == 0
    process_ended(child)
    if end != "child":
        monkeypatch.delenv("PYTHONPATH")
        server.start()
    until(lambda: not (server.directory / REPAIR_DIRECTORY).exists(), "the end of the repair's files")
    with server.client() as client:
        assert client.ask(*ASK).startswith(DAMAGED)
    undo_damage(server)


@pytest.mark.needs_root
def test_a_repair_that_has_no_room_is_refused(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk", 40 << 20) as disk:
        server = with_damage(partial(start_riverbed, disk), **{"disk-reserve-bytes": 1 << 20})
        with server.client() as client:
            reply = client.ask("RIVERBED", "REPAIR")
            assert re.match(rb"-ERR the tables were not repaired: [0-9,]+ bytes are free, and executing the log", reply)
            assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
        undo_damage(server)
        assert broken_invariants(disk) == []


def test_a_link_in_the_place_of_its_files_is_refused(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = with_damage(start_riverbed)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (server.directory / REPAIR_DIRECTORY).symlink_to(elsewhere)
    with server.client() as client:
        assert client.ask("RIVERBED", "REPAIR").startswith(b"-ERR ")
    server.stop()
    server.start()
    assert (elsewhere / "kept").exists()
    undo_damage(server)


def test_a_folder_of_that_name_with_other_files_is_refused_and_stays(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    letter = server.directory / REPAIR_DIRECTORY / "letter.txt"
    letter.parent.mkdir()
    letter.write_text("Dear")
    with server.client() as client:
        client.ask("XADD", "s", "1-0", "f", "v")
        reply = client.ask("RIVERBED", "REPAIR")
    assert reply.startswith(b"-ERR ")
    assert b"letter.txt is none of Riverbed's files: move it away" in reply
    assert server.stop() == 0
    result = run("check", server.directory, "--repair")
    assert result.exit_code == 2
    assert "letter.txt is none of Riverbed's files" in " ".join(result.output.split())
    assert letter.read_text() == "Dear"


def test_damage_enters_no_snapshot(start_riverbed: StartRiverbed) -> None:
    server = with_damage(start_riverbed)
    with server.client(timeout_s=600) as client:
        reply = client.ask("RIVERBED", "SNAPSHOT", "monday")
        assert reply.startswith(b"-ERR no snapshot: ") and b"entry 9999999999999-7 of stream " in reply
        assert not (server.directory / "snapshots" / "monday").exists()
        client.ask("RIVERBED", "REPAIR")
        assert b"monday" in client.ask("RIVERBED", "SNAPSHOT", "monday")


def test_an_empty_store_is_repaired_too(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options=QUIET)
    with server.client(timeout_s=600) as client:
        assert as_dict(client.tree("RIVERBED", "REPAIR"))["offset"] == "0"
        client.ask("XADD", "s", "*", "f", "v")
        assert "offset" in as_dict(client.tree("RIVERBED", "REPAIR"))
        assert client.ask("XLEN", "s") == b":1\r\n"


def test_damage_that_a_long_reply_meets_is_mended(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={**QUIET, "auto-repair": "yes"})
    with server.client() as client:
        for _ in range(4):
            fill(client, "s", 2000, 1000)
        client.ask("XADD", "s", "9999999999999-7", "field", VALUE)
    server.stop()
    damage(server.directory / STATE_DIRECTORY / DATA_NAME)
    server.start()
    with server.client() as client:
        client.send("XRANGE", "s", "-", "+")
        with pytest.raises(ConnectionError):
            client.reply()
    until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", "the repair")
    with server.client() as client:
        assert VALUE in client.ask(*ASK)


@pytest.mark.parametrize("table", ["expiry", "keys", "trash"])
def test_damage_that_a_chore_meets_is_mended_and_the_other_chores_go_on(
    start_riverbed: StartRiverbed, table: str
) -> None:
    server = start_riverbed(options={**QUIET, "checkpoint-interval-ms": 60_000})
    with server.client() as client:
        client.ask("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        fill(client, "gone", 20_000)
        client.ask("XADD", "expired", "1-1", "f", "v")
        client.ask("SAVE")
        client.ask("DEL" if table == "trash" else "EXISTS", "gone")
        client.ask("PEXPIRE", "expired", 1)
        client.ask("SAVE")
    server.kill()
    flip_first_row(server, table, b"expired" if table == "keys" else b"")
    server.start()
    until(lambda: "was undone: " in server.log_text(), f"the damage\n{server.log_tail()}")
    with server.client() as idle:
        assert idle.ask("CONFIG", "SET", "timeout", 1) == b"+OK\r\n"
        assert idle.rest_until_closed() == b""
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "timeout", 0, "auto-repair", "yes") == b"+OK\r\n"
        until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", "the repair")
        until(lambda: client.ask("EXISTS", "expired") == b":0\r\n", "the end of the key")
    assert "Traceback" not in server.log_text()
    assert server.log_text().count("was undone: ") < 60, "one try a second"


def flip_first_row(server: RiverbedServer, table: str, end_of_key: bytes, behind: int = 0) -> None:
    """Flip the last bit of the first row of a table whose key ends so, or of one behind it."""
    env = lmdb.open(str(server.directory / STATE_DIRECTORY), max_dbs=30, map_size=1 << 30)
    handle = env.open_db(table.encode(), create=False)
    with env.begin(write=True) as txn:
        key, row = [(key, row) for key, row in txn.cursor(handle) if key.endswith(end_of_key)][behind]
        txn.put(key, row[:-1] + bytes((row[-1] ^ 1,)), db=handle)
    env.close()


def test_claims_that_were_answered_outlive_damage_beside_them(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={**QUIET, "auto-repair": "yes"})
    with server.client() as client:
        for number in range(1, 301):
            client.ask("XADD", "s", f"{number}-1", "f", "v")
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        for consumer in ("Alice", "Bob", "Alice"):
            client.ask("XREADGROUP", "GROUP", "g", consumer, "COUNT", "100", "STREAMS", "s", ">")
    server.stop()
    flip_first_row(server, "pel", b"", 1)
    server.start()
    claims = [("XCLAIM", "s", "g", "Carol", "0", f"{number}-1", "JUSTID") for number in (50, 100, 201)]
    with server.client() as client:
        replies = client.pipeline([("MULTI",), *claims, ("EXEC",)])
        assert replies[-1] == b"*3\r\n" + b"".join(b"*1\r\n$%d\r\n%b\r\n" % (len(c[5]), c[5].encode()) for c in claims)
        assert b"damaged" in client.ask("XPENDING", "s", "g", "-", "+", 300)  # the claims did not look at Bob's row
        until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", "the repair")
        history = client.ask("XREADGROUP", "GROUP", "g", "Carol", "STREAMS", "s", "0")
        assert [number for number in (50, 100, 201) if b"%d-1" % number in history] == [50, 100, 201]
        assert b"$4\r\n50-1" not in client.ask("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "0")


def test_tables_that_an_operator_has_deleted_are_made_again(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options=QUIET)
    with server.client() as client:
        fill(client, "s", 100)
        shutil.rmtree(server.directory / STATE_DIRECTORY)
        assert client.ask("RIVERBED", "REPAIR").startswith(b"*")
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
        assert client.ask("SAVE") == b"+OK\r\n"
    server.restart()
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":101\r\n"


@pytest.mark.needs_root
def test_tables_that_cannot_be_moved_stay_in_use(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options=QUIET)
    with server.client() as client:
        fill(client, "s", 100)
    server.stop()
    state = server.directory / STATE_DIRECTORY
    subprocess.run(["mount", "--bind", state, state], check=True)
    try:
        server.start()
        with server.client() as client:
            assert b"ERR the tables were not repaired: " in client.ask("RIVERBED", "REPAIR")
            assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
            assert client.ask("XLEN", "s") == b":101\r\n"
            assert client.ask("SAVE") == b"+OK\r\n"
        server.restart()
        with server.client() as client:
            assert client.ask("XLEN", "s") == b":101\r\n"
        server.stop()
    finally:
        unmount(state)


def test_a_rewrite_that_is_asked_for_during_a_repair_comes_after_it(
    start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    gate = Gate(tmp_path, MODULE)
    server = with_damage(start_riverbed)
    with server.client() as client, server.client() as other:
        client.send("RIVERBED", "REPAIR")
        until(lambda: info(server, "persistence")["riverbed_repair_in_progress"] == "1", "the repair")
        assert other.ask("BGREWRITEAOF") == b"+Background append only file rewriting scheduled\r\n"
        gate.open()
        assert client.reply().startswith(b"*")
        until(lambda: info(server, "persistence")["aof_last_bgrewrite_status"] == "ok", "the rewrite")
        until(lambda: info(server, "persistence")["aof_rewrites"] == "1", "the rewrite")
    require_whole(server)
