"""Damage in files of the log that a start does not read is found, reported and mended while the server runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from riverbed.server.background.worker_modules import SCRUB
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, LOG_MANIFEST, STATE_DIRECTORY
from tests.conftest import StartRiverbed
from tests.support.replicas import fill, info
from tests.support.servers import RiverbedServer, free_port
from tests.support.waiting import process_ended, rewritten, until

FIELDS = ("riverbed_scrub_damaged_files", "riverbed_scrub_last_damage")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def only(server: RiverbedServer, pattern: str) -> Path:
    (path,) = (server.directory / LOG_DIRECTORY).glob(pattern)
    return path


def scrubs(server: RiverbedServer) -> int:
    return int(info(server, "persistence")["riverbed_scrubs"])


def until_scrubbed(server: RiverbedServer) -> None:
    """Wait for a scrub that begins from now on."""
    before = scrubs(server)
    until(lambda: scrubs(server) >= before + 2, f"a scrub\n{server.log_tail()}")


@pytest.fixture
def server(start_riverbed: StartRiverbed) -> RiverbedServer:
    """A server with a base, a kept end of the former log, and a log; it scrubs all the time."""
    port = free_port()
    server = start_riverbed(options={"scrub-interval": 1, "auto-repair": "no", "metrics-port": port})
    with server.client() as client:
        fill(client, "s", 2000)
        rewritten(server)
        fill(client, "s", 100)
    return server


def test_a_flipped_bit_in_a_base_is_found_after_a_start_and_a_rewrite_mends_it(server: RiverbedServer) -> None:
    path = only(server, "*.base.aof")
    server.stop()
    flip(path)
    server.start()
    until(lambda: info(server, "persistence")[FIELDS[0]] == "1", "the damage")
    found = info(server, "persistence")
    assert found[FIELDS[1]].startswith(f"{path} at byte ")
    assert "checksum does not match" in found[FIELDS[1]]
    assert int(found["riverbed_scrub_last_time"]) >= 0
    port = server.options["metrics-port"]
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    assert "\nriverbed_scrub_damaged_files 1.0\n" in page
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60).read() == b"ok\n"
    until_scrubbed(server)
    lines = [line for line in server.log_text().splitlines() if "damage on the disk: " in line]
    assert len(lines) == 1, "one line, however often it is found"
    assert "Run BGREWRITEAOF" in lines[0]
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":2100\r\n"
    rewritten(server)
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of the damage")
    until_scrubbed(server)
    assert info(server, "persistence")[FIELDS[0]] == "0"


def test_a_flipped_bit_in_the_kept_end_of_the_former_log_is_found(server: RiverbedServer) -> None:
    path = min((server.directory / LOG_DIRECTORY).glob("*.incr.aof"))
    flip(path)
    until(lambda: info(server, "persistence")[FIELDS[0]] == "1", "the damage")
    assert path.name in info(server, "persistence")[FIELDS[1]]
    assert "Only replicas that are away would need it" in server.log_text()
    flip(path)
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of the damage")


def test_a_damaged_end_of_the_former_log_is_given_up_and_deleted(server: RiverbedServer) -> None:
    path = min((server.directory / LOG_DIRECTORY).glob("*.incr.aof"))
    flip(path)
    until(lambda: info(server, "persistence")[FIELDS[0]] == "1", "the damage")
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "auto-repair", "yes") == b"+OK\r\n"
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of the damage")
    assert "the backlog was damaged and has ended" in server.log_text()
    until(lambda: not path.exists(), "the end of the file")
    assert server.stop() == 0
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":2100\r\n"


def test_a_missing_file_is_found(server: RiverbedServer) -> None:
    path = only(server, "*.base.aof")
    path.rename(server.directory / "elsewhere")
    until(lambda: info(server, "persistence")[FIELDS[0]] == "1", "the damage")
    assert "it is missing" in info(server, "persistence")[FIELDS[1]]
    (server.directory / "elsewhere").rename(path)
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of the damage")


def test_a_sound_log_that_is_written_and_rewritten_meanwhile_stays_sound(server: RiverbedServer) -> None:
    with server.client() as client:
        for _ in range(3):
            fill(client, "s", 3000, 100)
            rewritten(server)
            until_scrubbed(server)
    assert info(server, "persistence")[FIELDS[0]] == "0"
    assert "damage on the disk" not in server.log_text()
    assert server.stop() == 0


def test_a_flipped_bit_in_a_value_of_the_tables_is_found_and_a_repair_mends_it(server: RiverbedServer) -> None:
    with server.client() as client:
        client.ask("XADD", "s", "9999999999999-7", "field", "a value to be found")
    server.stop()
    path = server.directory / STATE_DIRECTORY / DATA_NAME
    data = bytearray(path.read_bytes())
    at = data.index(b"a value to be found")
    data[at] ^= 2
    path.write_bytes(data)
    server.start()
    until(lambda: info(server, "persistence")["riverbed_scrub_damaged_rows"] == "1", "the damage")
    found = info(server, "persistence")
    assert found["riverbed_scrub_last_damage"].startswith("table entries: entry 9999999999999-7 of stream ")
    assert found["riverbed_scrub_damaged_files"] == "1"
    until_scrubbed(server)
    (line,) = (line for line in server.log_text().splitlines() if "damage on the disk: " in line)
    assert "by RIVERBED REPAIR, or by `riverbed check --repair`" in line
    with server.client() as client:
        assert client.ask("XRANGE", "s", "9999999999999-7", "+").startswith(b"-ERR")
        assert client.ask("XRANGE", "s", "-", "+", "COUNT", 1).startswith(b"*1\r\n")
    server.stop()
    assert run("check", server.directory, "--repair")["sound"] is True
    server.start()
    until_scrubbed(server)
    assert info(server, "persistence")["riverbed_scrub_damaged_rows"] == "0"
    assert info(server, "persistence")["riverbed_scrub_damaged_files"] == "0"
    with server.client() as client:
        assert b"a value to be found" in client.ask("XRANGE", "s", "9999999999999-7", "+")


def test_a_stop_ends_the_process_of_a_scrub(server: RiverbedServer) -> None:
    with server.client() as client:
        fill(client, "t", 60_000)
        client.ask("SAVE")
        until(lambda: info(server, "persistence")["riverbed_scrub_in_progress"] == "1", "a scrub")
    until(lambda: server.children("scrub_worker"), "its process")
    children = server.children("scrub_worker")
    assert server.stop() == 0
    for child in children:
        process_ended(child)


def test_no_interval_is_no_scrub_until_there_is_one(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"scrub-interval": 0})
    assert scrubs(server) == 0
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "scrub-interval", "1") == b"+OK\r\n"
    until(lambda: scrubs(server) > 0, "a scrub")


def test_the_check_reads_the_kept_end_of_the_former_log_and_repair_gives_it_up(server: RiverbedServer) -> None:
    path = min((server.directory / LOG_DIRECTORY).glob("*.incr.aof"))
    server.stop()
    sound = run("check", server.directory)
    assert sound["sound"] is True
    flip(path)
    (found,) = run("check", server.directory)["violations"]
    assert (found["table"], found["file"]) == ("backlog", str(path))
    mended = run("check", server.directory, "--repair")
    assert mended["sound"] is True
    assert "out of the backlog" in mended["repaired"][0]["done"]
    assert run("check", server.directory)["sound"] is True
    server.start()
    until(lambda: not path.exists(), "the end of the file")
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":2100\r\n"


def run(*words: object) -> dict[str, object]:
    command = [sys.executable, "-m", "riverbed.tools.entry", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_one_file_of_a_wrong_length_hides_no_damage_in_others(server: RiverbedServer) -> None:
    kept = min((server.directory / LOG_DIRECTORY).glob("*.incr.aof"))
    with kept.open("r+b") as file:
        file.truncate(kept.stat().st_size - 10)
    flip(only(server, "*.base.aof"))
    until(lambda: info(server, "persistence")[FIELDS[0]] == "2", "both")
    assert "Only replicas that are away would need it" in server.log_text()
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "auto-repair", "yes") == b"+OK\r\n"
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of both")


def test_damage_in_both_halves_says_what_is_left_to_do(server: RiverbedServer) -> None:
    value = b"a value to be found"
    with server.client() as client:
        client.ask("XADD", "s", "9999999999999-7", "f", value)
        client.ask("SAVE")
    tables = server.directory / STATE_DIRECTORY / DATA_NAME
    change_in_place(tables, value, b"c" + value[1:])
    flip(only(server, "*.base.aof"))
    until(lambda: "neither can be made of the other" in server.log_text(), f"the text\n{server.log_tail()}")
    change_in_place(tables, b"c" + value[1:], value)
    flip(only(server, "*.base.aof"))
    assert server.stop() == 0


def change_in_place(path: Path, old: bytes, new: bytes) -> None:
    """Change a file that the server has mapped."""
    data = path.read_bytes()
    assert old in data
    with path.open("r+b") as file:
        file.write(data.replace(old, new))


def test_what_cannot_be_read_is_not_called_sound(
    start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(f"import os, sys\nif {SCRUB!r} in sys.orig_argv:\n    os._exit(1)\n")
    server = start_riverbed(options={"scrub-interval": 1})
    until(lambda: f"0 damaged, and {DATA_NAME} could not be read" in server.log_text(), "the scrub")
    assert server.stop() == 0


def test_tables_that_are_deleted_beside_the_server_are_damage(server: RiverbedServer) -> None:
    path = server.directory / STATE_DIRECTORY / DATA_NAME
    path.unlink()
    until(lambda: f"1 damaged, and {DATA_NAME} could not be read" in server.log_text(), "the scrub")
    assert f"{path} is gone" in info(server, "persistence")[FIELDS[1]]
    assert "RIVERBED REPAIR makes them again" in server.log_text()
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "auto-repair", "yes") == b"+OK\r\n"
    until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", f"the repair\n{server.log_tail()}")
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of the damage")
    assert path.exists()
    server.restart()
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":2100\r\n"


def test_a_directory_of_tables_that_is_deleted_beside_the_server_is_made_again(server: RiverbedServer) -> None:
    shutil.rmtree(server.directory / STATE_DIRECTORY)
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "auto-repair", "yes") == b"+OK\r\n"
        until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", f"the repair\n{server.log_tail()}")
        assert client.ask("XLEN", "s") == b":2100\r\n"
    assert server.stop() == 0


def test_what_the_server_mends_is_not_asked_of_its_operator(server: RiverbedServer) -> None:
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "scrub-interval", "0", "auto-repair", "yes") == b"+OK\r\n"
        until(lambda: info(server, "persistence")["riverbed_scrub_in_progress"] == "0", "no scrub")
        flip(only(server, "*.base.aof"))
        (server.directory / LOG_DIRECTORY / LOG_MANIFEST).unlink()
        assert client.ask("CONFIG", "SET", "scrub-interval", "1") == b"+OK\r\n"
    until(lambda: ": 2 damaged" in server.log_text(), f"the scrub\n{server.log_tail()}")
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of both")
    told = [line for line in server.log_text().splitlines() if "damage on the disk: " in line]
    assert len(told) == 2 and not any("BGREWRITEAOF" in line for line in told), told
    assert "and writes it again" in told[0] and "makes the log again of the tables" in told[1]


@pytest.mark.parametrize("how", ["flipped", "deleted"])
def test_a_damaged_manifest_is_found_and_written_again(server: RiverbedServer, how: str) -> None:
    path = server.directory / LOG_DIRECTORY / LOG_MANIFEST
    before = path.read_bytes()
    if how == "flipped":
        flip(path)
    else:
        path.unlink()
    until(lambda: info(server, "persistence")[FIELDS[0]] == "1", "the damage")
    assert LOG_MANIFEST in info(server, "persistence")[FIELDS[1]]
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "auto-repair", "yes") == b"+OK\r\n"
    until(lambda: info(server, "persistence")[FIELDS[0]] == "0", "the end of the damage")
    assert path.read_bytes() == before
    server.restart()
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":2100\r\n"


def test_tables_that_end_the_process_that_reads_them_are_damaged(
    start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, signal, sys\nif {SCRUB!r} in sys.orig_argv:\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    server = start_riverbed(options={"scrub-interval": 1, "auto-repair": "yes"})
    until(lambda: info(server, "persistence")["riverbed_repairs"] != "0", "the repair")
    assert "broken pages ended the process of the scrub" in server.log_text()
    assert "could not be read" in server.log_text()
    assert server.stop() == 0
