"""While a start loads a long log: what is answered, what is refused, and how it ends.

The server under test waits after each step of its load until a file says that it may go on.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from riverbed.server.commands import load_commands
from riverbed.server.commands.table import COMMANDS, Command, Flag
from tests.support.servers import PATIENCE_S, RiverbedServer, free_port

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
KEYS = 40
PROGRAM = """
import sys, time
from pathlib import Path
from riverbed.server import assembly, main
from riverbed.store.engine import Engine

gate, patience = Path(sys.argv.pop(1)), float(sys.argv.pop(1))
assembly._LONG_LOAD_S = patience
load = Engine.load

def held(self, progress):
    for _ in load(self, progress):
        yield
        while not gate.exists():
            time.sleep(0.001)
            yield

Engine.load = held
sys.exit(main.main())
"""


class HeldServer(RiverbedServer):
    """A server whose load waits for the file `gate`; it listens `patience_s` after the beginning."""

    patience_s = 0.0

    @property
    def gate(self) -> Path:
        return self.log_path.with_suffix(".gate")

    def program(self) -> list[str]:
        program = self.log_path.with_suffix(".py")
        program.write_text(PROGRAM)
        return [sys.executable, str(program), str(self.gate), str(self.patience_s)]

    def wait_listening(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, self.log_tail()
            try:
                self.client().close()
                return
            except OSError:
                time.sleep(0.01)
        raise AssertionError(f"does not listen\n{self.log_tail()}")

    def go_on(self) -> None:
        self.gate.touch()
        self.wait_ready()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldServer]:
    """A server of 40 streams of 4 kB each, not started, whose tables are gone."""
    first = RiverbedServer(tmp_path / "data", tmp_path / "logs", {"appendfsync": "no"})
    with first, first.client() as client:
        for number in range(KEYS):
            client.ask("XADD", f"s{number}", "1-1", "f", "x" * 4096)
    (tmp_path / "data" / "state").rename(tmp_path / "state")
    server = HeldServer(tmp_path / "data", tmp_path / "logs")
    yield server
    server.kill()


@pytest.fixture
def loading(held: HeldServer) -> HeldServer:
    """The same, in the middle of its load."""
    held.spawn()
    held.wait_listening()
    return held


def rows() -> Iterator[Command]:
    load_commands()
    for row in COMMANDS.values():
        yield from row.subcommands.values() or (row,)


def call(row: Command) -> list[str]:
    name = row.name.decode().split()
    return [*name, *["0"] * (abs(row.arity) - len(name))]


def test_commands_are_refused_by_their_flags(loading: HeldServer) -> None:
    ends_connection = {b"SHUTDOWN", b"QUIT", b"MONITOR", b"PSYNC", b"SYNC"}
    refused, served = set(), set()
    for row in rows():
        if row.is_for_clients and row.name not in ends_connection:
            with loading.client() as client:
                is_refused = client.ask(*call(row)) == LOADING
            (refused if is_refused else served).add(row.name.decode())
            assert is_refused is (Flag.LOADING not in row.flags or row.name == b"DEBUG"), row.name
    assert {"PING", "XADD", "XREAD", "REPLICAOF", "SAVE", "FLUSHALL"} <= refused
    assert {"HELLO", "AUTH", "SELECT", "ROLE", "CONFIG GET", "CLIENT LIST", "PUBLISH", "MULTI", "INFO"} <= served
    with loading.client() as client:
        assert client.ask("PSYNC", "?", "-1") == LOADING


def test_a_command_refused_in_a_transaction_discards_it(loading: HeldServer) -> None:
    with loading.client() as client:
        assert client.ask("MULTI") == b"+OK\r\n"
        assert client.ask("XLEN", "s0") == LOADING
        assert client.ask("ECHO", "x") == b"+QUEUED\r\n"
        assert client.ask("EXEC").startswith(b"-EXECABORT Transaction discarded because of previous errors")
        assert client.ask("MULTI") == b"+OK\r\n"
        assert client.ask("ECHO", "x") == b"+QUEUED\r\n"
        assert client.ask("EXEC") == b"*1\r\n$1\r\nx\r\n"


def test_info_and_the_metrics_port_show_how_far_it_is(held: HeldServer) -> None:
    held.options["metrics-port"] = port = free_port()
    held.spawn()
    held.wait_listening()
    with held.client() as client:
        found = client.info("persistence")
        assert found["loading"] == "1"
        assert int(found["loading_total_bytes"]) > KEYS * 4096
        assert 0 < int(found["loading_loaded_bytes"]) < int(found["loading_total_bytes"])
        assert 0 < float(found["loading_loaded_perc"]) < 100
        assert abs(int(found["loading_start_time"]) - time.time()) < PATIENCE_S
        assert int(found["loading_eta_seconds"]) > 0
        assert found["riverbed_loading_step"] == "executing the log"
        assert client.info("everything")["master_repl_offset"] == "0"
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60)
    with refused.value as answer:
        text = answer.read().decode()
    assert text.startswith("loading, executing the log: ")
    assert text.endswith(" %\n")
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    values = dict(line.split() for line in page.splitlines() if not line.startswith("#"))
    assert set(values) == {"riverbed_loading", "riverbed_loading_loaded_bytes", "riverbed_loading_total_bytes"}
    assert values["riverbed_loading"] == "1.0"
    held.go_on()
    with held.client() as client:
        found = client.info("persistence")
        assert found["loading"] == "0"
        assert "loading_total_bytes" not in found
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60).read() == b"ok\n"
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    assert "\nriverbed_loading 0.0\n" in page


def test_nothing_is_committed_while_a_log_with_copies_is_loaded(tmp_path: Path) -> None:
    first = RiverbedServer(tmp_path / "data", tmp_path / "logs", {"appendfsync": "no"})
    with first, first.client() as client:
        for number in range(KEYS):
            client.ask("XADD", "s", "*", "f", "x" * 4096)
            client.ask("COPY", "s", f"t{number}")
    (tmp_path / "data" / "state").rename(tmp_path / "state")
    server = HeldServer(tmp_path / "data", tmp_path / "logs")
    server.spawn()
    server.wait_listening()
    with server.client() as client:
        for _ in range(10):
            assert client.info("persistence")["loading"] == "1"
        assert float(client.info("persistence")["loading_loaded_perc"]) > 10
        server.go_on()
        assert client.ask("XLEN", f"t{KEYS - 1}") == b":%d\r\n" % KEYS
    assert "checkpoint" not in server.log_text()
    assert server.stop() == 0


def test_what_a_client_has_set_up_outlasts_the_load(loading: HeldServer) -> None:
    with loading.client() as early, loading.client() as watching, loading.client() as listening:
        assert early.ask("SELECT", "3") == early.ask("CLIENT", "SETNAME", "me") == b"+OK\r\n"
        assert early.ask("CONFIG", "SET", "timeout", "77") == b"+OK\r\n"
        assert watching.ask("WATCH", "s39") == watching.ask("MULTI") == b"+OK\r\n"
        listening.ask("SUBSCRIBE", "news")
        loading.go_on()
        assert early.ask("CLIENT", "GETNAME") == b"$2\r\nme\r\n"
        assert early.ask("DBSIZE") == b":0\r\n"
        assert early.ask("SELECT", "0") == b"+OK\r\n"
        assert early.ask("DBSIZE") == b":%d\r\n" % KEYS
        assert early.ask("CONFIG", "GET", "timeout") == b"*2\r\n$7\r\ntimeout\r\n$2\r\n77\r\n"
        assert watching.ask("PING") == b"+QUEUED\r\n"
        assert watching.ask("EXEC") == b"*-1\r\n", "the watched key was loaded meanwhile"
        assert early.ask("PUBLISH", "news", "x") == b":1\r\n"
        assert early.ask("XADD", "s0", "2-1", "f", "v") == b"$3\r\n2-1\r\n"
        assert early.ask("DEBUG", "LOADAOF") == b"+OK\r\n"
        assert early.ask("XLEN", "s0") == b":2\r\n"
    assert loading.stop() == 0


@pytest.mark.parametrize("words", [(), ("NOSAVE",), ("SAVE",), ("NOW", "FORCE")])
def test_shutdown_ends_a_load_at_once_and_loses_nothing(loading: HeldServer, words: tuple[str, ...]) -> None:
    with loading.client() as client:
        assert client.ask("SHUTDOWN", "ABORT") == b"-ERR No shutdown in progress.\r\n"
        client.send("SHUTDOWN", *words)
        assert client.rest_until_closed() == b""
    assert loading.wait_ended() == 0
    assert "Received shutdown signal during loading, exiting now." in loading.log_text()
    loading.gate.touch()
    with loading, loading.client() as client:
        assert client.ask("DBSIZE") == b":%d\r\n" % KEYS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_load_at_once_and_loses_nothing(loading: HeldServer, number: signal.Signals) -> None:
    assert loading.process is not None
    loading.process.send_signal(number)
    assert loading.wait_ended() == 0
    loading.gate.touch()
    with loading, loading.client() as client:
        assert client.ask("DBSIZE") == b":%d\r\n" % KEYS


def test_a_damaged_log_ends_the_start_and_every_connection(held: HeldServer) -> None:
    (path,) = (held.directory / "appendonlydir").glob("*.incr.aof")
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)
    held.spawn()
    held.wait_listening()
    with held.client() as client:
        assert client.ask("XLEN", "s0") == LOADING
        held.gate.touch()
        assert client.rest_until_closed() == b""
    assert held.wait_ended() == 1
    tail = held.log_text()
    assert "damaged data: " in tail
    assert "riverbed check" in tail
    assert "Traceback" not in tail
    assert path.read_bytes() == data
    assert not (held.directory / "state").exists()


def test_clients_find_no_server_during_a_short_load(held: HeldServer) -> None:
    held.patience_s = 3600.0
    held.spawn()
    while "data in" not in held.log_text():
        time.sleep(0.01)
    for _ in range(20):
        with pytest.raises(ConnectionRefusedError):
            held.client()
        time.sleep(0.01)
    held.go_on()
    with held.client() as client:
        assert client.ask("DBSIZE") == b":%d\r\n" % KEYS


def test_a_replica_says_during_its_load_that_it_is_one(held: HeldServer) -> None:
    held.options["replicaof"] = "127.0.0.1 1"
    held.spawn()
    held.wait_listening()
    with held.client() as client:
        assert client.ask("ROLE") == b"*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$7\r\nconnect\r\n:-1\r\n"
        found = client.info("replication")
        assert (found["role"], found["master_link_status"], found["slave_repl_offset"]) == ("slave", "down", "0")
        assert client.ask("XADD", "s0", "9-9", "f", "v").startswith(b"-READONLY ")
        assert client.ask("XLEN", "s0") == LOADING
        assert client.ask("CONFIG", "SET", "replica-serve-stale-data", "no") == b"+OK\r\n"
        assert client.ask("XLEN", "s0").startswith(b"-MASTERDOWN ")


def test_redis_py_waits_out_a_load(loading: HeldServer) -> None:
    impatient = redis.Redis(port=loading.port, retry=Retry(ConstantBackoff(0), 0))
    with impatient, pytest.raises(BusyLoadingError, match="loading the dataset"):
        impatient.xlen("s0")
    release = threading.Timer(0.3, loading.gate.touch)
    release.start()
    retry = Retry(ConstantBackoff(0.02), int(PATIENCE_S / 0.02))
    with redis.Redis(port=loading.port, retry=retry, retry_on_error=[BusyLoadingError]) as patient:
        assert patient.xlen("s0") == 1
    release.join()
    loading.wait_ready()


def test_a_server_that_cannot_listen_in_the_middle_of_its_load_does_not_start(held: HeldServer) -> None:
    path = held.log_path.parent / "socket"
    path.mkdir()
    held.options["unixsocket"] = str(path)
    held.spawn()
    assert held.wait_ended() == 1
    assert str(path) in held.log_text()
    assert "Traceback" not in held.log_text()
