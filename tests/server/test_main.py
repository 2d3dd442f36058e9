from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from riverbed.server.config.config import Config
from riverbed.server.config.settings import SETTINGS
from riverbed.server.descriptors import allow_descriptors
from riverbed.server.start.errors import explained
from riverbed.server.version import IS_COMPILED, VERSION
from tests.support.faults.silence import UnixClient
from tests.support.servers import IMPORTED_FROM, ROOT, RiverbedServer, free_port
from tests.support.trees import tree
from tests.support.waiting import until

StartRiverbed = Callable[..., RiverbedServer]

pytestmark = pytest.mark.usefixtures("real_start")


def start_in_vain(*arguments: object, **variables: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a server that is not expected to come up."""
    done = subprocess.run(
        [sys.executable, "-m", "riverbed.server.main", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def newest_log(directory: Path) -> Path:
    return max((directory / "appendonlydir").glob("*.incr.aof"))


# -- looking around


def test_help_explains_every_setting() -> None:
    status, out, err = start_in_vain("--help")
    assert (status, err) == (0, "")
    for setting in SETTINGS.values():
        assert f"  --{setting.name} " in out, setting.name
    assert "(default 200 milliseconds)" in " ".join(out.split())


@pytest.mark.parametrize("words", [["--version"], ["-v"], ["--port", "1", "--version"]])
def test_version_is_told(words: list[str]) -> None:
    status, out, err = start_in_vain(*words)
    assert (status, err) == (0, "")
    assert out.startswith(f"riverbed-server {VERSION} ")
    assert out.endswith(f", {'compiled' if IS_COMPILED else 'interpreted'}, with the native module)\n")


def test_a_start_imports_nothing_that_only_rare_work_needs() -> None:
    rare = {"argparse", "email", "importlib.metadata", "pickle", "platform", "prometheus_client", "rich", "tempfile"}
    rare |= {"riverbed.server.start.repair", "riverbed.store.check", "riverbed.store.offline"}
    program = "import gc, sys, riverbed.server.main\nprint(gc.isenabled(), *sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, timeout=60)
    collects, *modules = done.stdout.decode().split("\n")
    assert collects == "True"
    assert rare.isdisjoint(modules)


def test_the_reference_of_the_native_module_runs_where_it_is_wanted(tmp_path: Path) -> None:
    status, out, err = start_in_vain("--version", RIVERBED_NATIVE="0")
    assert (status, err) == (0, "")
    assert out.endswith(", without the native module)\n")
    for wanted, line in (("0", b"without the native module"), ("1", b"")):
        directory = tmp_path / wanted
        directory.mkdir()
        server = RiverbedServer(directory, tmp_path / "logs")
        server.environment = {**os.environ, "RIVERBED_NATIVE": wanted}
        with server, server.client() as client:
            assert b"riverbed_native:%b\r\n" % wanted.encode() in client.ask("INFO", "server")
            assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        assert (b"without the native module" in server.log_path.read_bytes()) == bool(line)


# -- what keeps it from starting


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--port", "abc"), "command line: port: 'abc' is no number between 0 and 65535"),
        (
            ("--dir", "/nonexistent/riverbed"),
            "dir: /nonexistent/riverbed cannot be made: there is no directory /nonexistent",
        ),
        (("--nosuch", "1"), "command line: nosuch: there is no such setting"),
        (("--port", "0"), "nothing to listen on: give a port or tls-port and an address to bind, or a unixsocket"),
        (("/nonexistent/riverbed.conf",), "/nonexistent/riverbed.conf: No such file or directory"),
        (("--logfile", "/nonexistent/log"), "logfile: /nonexistent/log: No such file or directory"),
    ],
)
def test_bad_setting_is_one_line_and_status_1(arguments: tuple[str, ...], reason: str) -> None:
    assert start_in_vain(*arguments) == (1, "", f"riverbed-server: {reason}\n")


def test_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text("# fine\nport 1x\n")
    assert start_in_vain(path) == (
        1,
        "",
        f"riverbed-server: {path}:2: port: '1x' is no number between 0 and 65535\n",
    )


def test_control_characters_of_files_reach_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "riverbed\x1b[2J.conf"
    path.write_text("\x1b[31m\x07\x9b0m yes\n")
    status, out, err = start_in_vain(path)
    assert (status, out) == (1, "")
    assert "\\x1b[2J" in err and "\\x1b[31m\\x07\\x9b0m" in err
    assert err.removesuffix("\n").isprintable()
    (tmp_path / "users\x07").write_text("user bob \x1b[2J\n")
    status, out, err = start_in_vain("--aclfile", tmp_path / "users\x07", "--dir", tmp_path)
    assert (status, out) == (1, "")
    assert all(line.isprintable() for line in err.split("\n"))


def test_port_in_use_is_told(riverbed: RiverbedServer, tmp_path: Path) -> None:
    status, out, _ = start_in_vain("--port", riverbed.port, "--bind", "127.0.0.1", "--dir", tmp_path / "other")
    assert status == 1
    assert out.splitlines()[-1].endswith(
        f" # port {riverbed.port} is in use; stop the program that listens there, or choose another --port"
        f" (127.0.0.1:{riverbed.port}: Address already in use)"
    )


@pytest.mark.parametrize("name", ["nosuchhost.invalid", "a" * 64, "a..b"])
def test_a_name_that_stands_for_no_address_is_told(tmp_path: Path, name: str) -> None:
    port = free_port()
    status, out, _ = start_in_vain("--port", port, "--bind", name, "--dir", tmp_path / "d")
    assert status == 1
    try:
        socket.getaddrinfo("nosuchhost.invalid", port)
    except socket.gaierror as error:
        told = error.strerror if "invalid" in name else "Name or service not known"
    assert out.splitlines()[-1].endswith(f" # cannot start: {name}:{port}: {told}")


def test_one_port_for_clients_and_for_metrics_is_told(tmp_path: Path) -> None:
    port = free_port()
    words = ("--port", port, "--metrics-port", port, "--bind", "127.0.0.1", "--dir", tmp_path / "d")
    status, out, _ = start_in_vain(*words)
    assert status == 1
    assert "Ready" not in out
    assert f"port {port} is in use" in out.splitlines()[-1]


@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("setting", ["port", "metrics-port", "unixsocket"])
def test_a_start_for_which_there_is_no_address_touches_no_file(
    tmp_path: Path, start_riverbed: StartRiverbed, setting: str, has_store: bool
) -> None:
    directory = tmp_path / "d"
    if has_store:
        server = start_riverbed(directory=directory)
        with server.client() as client:
            client.ask("XADD", "s", "1-1", "f", "v")
        server.kill()
    before = tree(tmp_path)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        words = {
            "port": ("--port", taken),
            "metrics-port": ("--port", free_port(), "--metrics-port", taken),
            "unixsocket": ("--port", 0, "--unixsocket", tmp_path / "missing" / "socket"),
        }[setting]
        status, out, _ = start_in_vain("--bind", "127.0.0.1", "--dir", directory, *words)
    assert status == 1
    assert "is in use" in out or "No such file" in out
    assert tree(tmp_path) == before


def test_directory_in_use_is_told(riverbed: RiverbedServer) -> None:
    status, out, _ = start_in_vain("--port", free_port(), "--bind", "127.0.0.1", "--dir", riverbed.directory)
    assert status == 1
    assert out.splitlines()[-1].endswith(
        f" # {riverbed.directory} is in use by another process; stop it, or give this one another --dir"
    )


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    status, out, _ = start_in_vain("--port", free_port(), "--dir", path)
    assert status == 1
    assert out.splitlines()[-1].endswith(f" # cannot start: {path} is not a directory")


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "nowhere")
    status, _, err = start_in_vain("--port", free_port(), "--dir", path)
    assert status == 1
    assert err == f"riverbed-server: dir: {path} is a link to {tmp_path / 'nowhere'}, which is not there\n"


def test_a_directory_without_a_name_is_told() -> None:
    status, _, err = start_in_vain("--port", free_port(), "--dir", "")
    assert (status, err) == (1, "riverbed-server: command line: dir: argument must name a directory\n")


@pytest.mark.parametrize("part", ["state", "appendonlydir"])
def test_a_part_of_a_store_is_not_taken_for_a_store(start_riverbed: StartRiverbed, part: str) -> None:
    directory = start_riverbed().directory
    status, out, _ = start_in_vain("--port", free_port(), "--dir", directory / part)
    assert status == 1
    assert out.splitlines()[-1].endswith(
        f" # {directory / part} is a part of the data directory {directory}: name that"
    )


@pytest.mark.parametrize("words", ["n" * 300, "/".join(["name" * 40] * 40)])
def test_a_path_that_is_too_long_for_a_directory_is_told(tmp_path: Path, words: str) -> None:
    status, out, err = start_in_vain("--port", free_port(), "--dir", tmp_path / words / "data")
    assert status == 1
    assert "Traceback" not in out + err
    assert "File name too long" in out.splitlines()[-1]


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_full_device_in_the_place_of_the_output_is_told(word: str) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "riverbed.server.main", word]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"riverbed-server: standard output: No space left on device\n")


def test_log_lines_that_the_output_does_not_take_go_to_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "riverbed.server.main", "--port", str(free_port()), "--dir", str(path)]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    *_, last = done.stderr.decode().splitlines()
    assert "Traceback" not in done.stderr.decode()
    reason = f"cannot start: {path} is not a directory"
    assert last.endswith(f" # {reason} (not in the log: [Errno 28] No space left on device)")


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_server_that_is_started_without_standard_files_serves_and_stops(tmp_path: Path, closing: str) -> None:
    """No file of its own gets their numbers: what a library writes to standard error would be written into it."""
    port = free_port()
    command = [sys.executable, "-m", "riverbed.server.main", "--port", str(port), "--dir", str(tmp_path / "data")]
    with (tmp_path / "other").open("wb") as other:
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {closing}', "sh", *command], cwd=ROOT, stdin=other, stdout=other, stderr=other
        )
    try:
        until(lambda: b"+PONG" in answer_of(port), "the server")
        standard = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)]
        assert standard.count(os.devnull) == closing.count("&-")
        assert set(standard) <= {os.devnull, str(tmp_path / "other")}
    finally:
        process.terminate()
        assert process.wait(60) == 0


def answer_of(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100)
    except OSError:
        return b""


def test_reason_goes_to_the_terminal_too_when_there_is_a_logfile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    status, out, err = start_in_vain("--port", free_port(), "--dir", path, "--logfile", tmp_path / "log")
    assert (status, out) == (1, "")
    assert err == f"riverbed-server: cannot start: {path} is not a directory\n"
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith(f" # cannot start: {path} is not a directory")


def test_a_log_file_that_is_moved_away_is_begun_again(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    log, moved = tmp_path / "server.log", tmp_path / "server.log.1"
    server = start_riverbed(options={"logfile": log})
    log.rename(moved)
    with server.client() as client:
        os.kill(server.pid, signal.SIGHUP)  # what rotates logs sends it
        client.ask("BGREWRITEAOF")
        until(lambda: log.exists() and "rewrit" in log.read_text(), "a line in the new file")
    assert "rewrit" not in moved.read_text()


@pytest.mark.parametrize("how", ["no directory", "full"])
def test_a_log_file_that_cannot_be_written_holds_up_nothing(
    start_riverbed: StartRiverbed, tmp_path: Path, how: str
) -> None:
    directory = tmp_path / "lines"
    directory.mkdir()
    log = directory / "server.log"
    server = start_riverbed(options={"logfile": log})
    if how == "full":
        log.unlink()
        log.symlink_to("/dev/full")
    else:
        shutil.rmtree(directory)
    with server.client() as client:
        assert client.ask("BGREWRITEAOF").startswith(b"+Background")
        assert client.ask("REPLICAOF", "127.0.0.1", 1) == b"+OK\r\n"
        assert client.ask("REPLICAOF", "NO", "ONE") == b"+OK\r\n"
        assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        assert client.ask("RIVERBED", "SNAPSHOT", "one").startswith(b"*14\r\n")
    assert server.stop() == 0
    assert "(not in the log: " in server.log_text()


def test_a_start_for_which_the_tables_have_no_room_names_the_setting() -> None:
    config = Config.load(["--dir", "here"])
    assert explained(lmdb.MapFullError("mdb_put"), config).endswith("; start with a larger lmdb-map-size")
    assert explained(lmdb.MemoryError("mdb_env_open"), config).endswith(
        "smaller lmdb-map-size, or a larger `ulimit -v`"
    )
    assert "LMDB says mdb_put" in explained(lmdb.DiskError("mdb_put"), config)


@pytest.mark.parametrize(("most_bytes", "name"), [(0, "state/lock.mdb"), (8 << 10, "appendonlydir/*.incr.aof")])
def test_a_file_that_may_not_be_as_long_is_named(
    start_riverbed: StartRiverbed, tmp_path: Path, most_bytes: int, name: str
) -> None:
    server = start_riverbed(tmp_path / "d")
    with server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v" * 20_000)
    server.kill()
    directory = server.directory
    if not most_bytes:
        (directory / "state" / "lock.mdb").unlink()
    (path,) = directory.glob(name) if most_bytes else [directory / name]
    limited = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}));"
    run = " from riverbed.server.main import main; sys.exit(main())"
    words = [sys.executable, "-c", limited + run, "--port", str(free_port()), "--dir", str(directory)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f" # cannot start: {path}: File too large; see `ulimit -f`" in done.stdout.decode().splitlines()[-1]


def test_a_file_without_permission_is_told_with_what_it_allows(tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.touch(0o400)
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    owner, own = path.stat().st_uid, os.geteuid()
    told = f"no permission: {path}: Permission denied (-r--------, of user {owner}; the server is user {own})"
    assert explained(error, Config.load(["--dir", str(tmp_path)])) == told


def test_damaged_log_is_told_with_file_and_offset(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = start_riverbed(tmp_path / "whole")
    with server.client() as client:
        for number in range(20):
            client.ask("XADD", "s", f"{number + 1}-1", "field", "value")
    server.kill()
    # LMDB must need the log, so it goes: the log alone rebuilds it, and finds the damage
    damaged = tmp_path / "damaged"
    (damaged / "appendonlydir").mkdir(parents=True)
    for file in (server.directory / "appendonlydir").iterdir():
        (damaged / "appendonlydir" / file.name).write_bytes(file.read_bytes())
    log = newest_log(damaged)
    data = bytearray(log.read_bytes())
    data[data.index(b"value") + 1] ^= 1
    log.write_bytes(data)
    status, out, _ = start_in_vain("--port", free_port(), "--bind", "127.0.0.1", "--dir", damaged)
    assert status == 1
    last = out.splitlines()[-1]
    assert f" # damaged data: {log.name} at byte " in last.replace(f"{log.parent}/", "")
    assert f"`riverbed check {damaged}` shows more" in last
    assert log.read_bytes() == data


# -- a run


def test_settings_come_from_the_file_and_are_written_back(tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text(f"# mine\ntimeout 77\nrdbchecksum yes\nport {free_port()}\n")
    port = Config.load([str(path)]).port
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "riverbed.server.main", str(path), "--dir", str(tmp_path / "data")],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    server = RiverbedServer(tmp_path / "data", tmp_path / "logs")
    server.process, server.port, server.log_path = process, port, tmp_path / "out"
    try:
        server.wait_ready()
        with server.client() as client:
            assert client.ask("CONFIG", "GET", "timeout") == b"*2\r\n$7\r\ntimeout\r\n$2\r\n77\r\n"
            assert client.ask("CONFIG", "SET", "timeout", "78") == b"+OK\r\n"
            assert client.ask("CONFIG", "REWRITE") == b"+OK\r\n"
        assert server.stop() == 0
    finally:
        server.kill()
    assert path.read_text() == (
        f"# mine\ntimeout 78\nrdbchecksum yes\nport {port}\n\n# Written by CONFIG REWRITE\ndir {tmp_path}/data\n"
    )
    log = (tmp_path / "out").read_text()
    assert f"{path}:3: rdbchecksum is ignored: it has no meaning here" in log
    assert f"riverbed-server {VERSION}, pid {process.pid}, data in {tmp_path}/data" in log


def test_sigterm_and_sigint_end_with_status_0(start_riverbed: StartRiverbed) -> None:
    assert start_riverbed().stop() == 0
    server = start_riverbed()
    assert server.process is not None
    server.process.send_signal(2)
    assert server.wait_ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_store_is_opened_ends_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from riverbed.server import main\n"
        "from riverbed.server.network import listener\n"
        "open_server = listener.open_server\n"
        "def interrupted(*arguments):\n"
        "    opened = open_server(*arguments)\n"
        f"    os.kill(os.getpid(), {number:d})\n"
        "    return opened\n"
        "listener.open_server = interrupted\n"
        "sys.exit(main.main())\n"
    )
    command = [sys.executable, str(program), "--port", str(free_port()), "--dir", str(tmp_path / "data")]
    environment = os.environ | {"PYTHONPATH": str(IMPORTED_FROM)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"Received shutdown signal during loading, exiting now.\n")


def test_log_level_changes_while_it_runs(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"loglevel": "warning"})
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "loglevel", "notice") == b"+OK\r\n"
    assert "data in" not in server.log_text()
    server.stop()
    assert "stopped" in server.log_text()


@pytest.mark.parametrize("kind", ["nfs4", None])
def test_a_start_on_a_file_system_of_another_machine_is_warned_of(tmp_path: Path, kind: str | None) -> None:
    program = (
        "import sys\n"
        "from riverbed.server import main\n"
        f"main.remote_type = lambda path: {kind!r}\n"
        "main.run = lambda config: 0\n"
        "sys.exit(main.main())\n"
    )
    command = [sys.executable, "-c", program, "--dir", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(IMPORTED_FROM)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "data in" in done.stdout + done.stderr
    warning = f"{tmp_path} is on nfs4, a file system of another machine"
    assert (warning in done.stdout + done.stderr) is (kind is not None)


def test_maxclients_gives_way_to_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: [(256, 1000), *asked][-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    config = Config()
    allow_descriptors(config)
    assert asked == [(1000, 1000)]
    assert config.maxclients == 968
    asked.clear()
    config = Config.load(["--maxclients", "300"])
    allow_descriptors(config)
    assert asked == [(1000, 1000)], "files of replies may have what clients do not need"
    assert config.maxclients == 300


@pytest.mark.parametrize("most", [256, 257, 10_000, 10_240, 11_055, 11_056])
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_does(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS says that there is no limit, and refuses what is beyond its own."""
    now = [256]

    def set_limit(which: int, limits: tuple[int, int]) -> None:
        if limits[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        now[0] = limits[0]

    monkeypatch.setattr(resource, "getrlimit", lambda which: (now[0], resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    config = Config()
    allow_descriptors(config)
    assert now == [most]
    assert config.maxclients == min(10_000, most - 32)


@pytest.mark.parametrize("limit", [20, 32, 33])
def test_a_start_without_descriptors_for_a_client_is_refused(tmp_path: Path, limit: int) -> None:
    limited = f"import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}));"
    run = " from riverbed.server.main import main; sys.exit(main())"
    path = tmp_path / "socket"
    options = ["--port", "0", "--unixsocket", str(path), "--dir", str(tmp_path / "d")]
    words = [sys.executable, "-c", limited + run, *options]
    clients: list[UnixClient] = []

    def connects() -> bool:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):  # the socket is there before it listens
            clients.append(UnixClient(path, 10))
        return bool(clients)

    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=out)
    try:
        if limit > 32:
            until(connects, "a server that listens")
            with clients[0] as client:
                assert client.ask("PING") == b"+PONG\r\n"
            return
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    told = f" # cannot start: `ulimit -n` allows {limit} open files, and one client takes 33: allow more"
    assert (tmp_path / "out").read_text().splitlines()[-1].endswith(told)
    assert not (tmp_path / "d").exists()


def test_entry_points_exist() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"riverbed", "riverbed-server"}
    for target in scripts.values():
        module, _, function = target.partition(":")
        # in a process of its own: the modules change what signals do
        program = f"from {module} import {function}; print(callable({function}))"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"


def test_a_server_that_a_page_the_disk_cannot_read_has_ended_says_so(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGBUS)
    assert server.process.wait() == -signal.SIGBUS
    server.process = None
    assert (server.directory / "last-words").read_text().startswith("Fatal Python error: Bus error")
    server.start()
