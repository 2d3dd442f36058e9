"""The clients people use understand what we say: redis-py 7 and 8 in both protocols, and redis-cli.

What the commands mean is tested next to them; here a client library parses every reply.  redis-py 7 is fetched into a
folder of its own; `RIVERBED_REDIS_PY_7` names one that holds it already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import REDIS_MISSING, ROOT, Server

SESSION = ROOT / "tests" / "support" / "client_session.py"
SECTIONS = 13


def run_session(server: Server, protocol: int, major: int, search: Path | None) -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if search is not None:
        environment["PYTHONPATH"] = str(search)
    done = subprocess.run(
        [sys.executable, str(SESSION), str(server.port), str(protocol)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log_tail()}"
    lines = done.stdout.splitlines()
    assert len(lines) == SECTIONS, lines
    assert all(line.startswith(f"redis-py {major}.") for line in lines), lines


@pytest.fixture(scope="session")
def redis_py_7(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with redis-py 7, for PYTHONPATH."""
    if "RIVERBED_REDIS_PY_7" in os.environ:
        return Path(os.environ["RIVERBED_REDIS_PY_7"])
    target = tmp_path_factory.mktemp("redis-py-7")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(target), "redis>=7,<8"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (
        "redis-py 7 could not be installed; run `pip install --no-deps --target DIR 'redis>=7,<8'` "
        f"and set RIVERBED_REDIS_PY_7=DIR\n{done.stderr}"
    )
    return target


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_session_with_redis_py_8(riverbed: Server, protocol: int) -> None:
    run_session(riverbed, protocol, 8, None)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_session_with_redis_py_7(riverbed: Server, protocol: int, redis_py_7: Path) -> None:
    run_session(riverbed, protocol, 7, redis_py_7)


# -- redis-cli ---------------------------------------------------------------------------------------------------------


def cli(server: Server, *words: str, stdin: str | None = None) -> str:
    """What redis-cli prints, without the last line end."""
    program = shutil.which("redis-cli")
    assert program is not None, REDIS_MISSING
    done = subprocess.run(
        [program, "-h", "127.0.0.1", "-p", str(server.port), *words],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return (done.stdout + done.stderr).rstrip("\n")


def test_redis_cli_one_liners(riverbed: Server) -> None:
    assert cli(riverbed, "PING") == "PONG"
    assert cli(riverbed, "XADD", "s", "1-1", "name", "first entry") == "1-1"
    assert cli(riverbed, "XADD", "s", "1-1", "f", "v").startswith("ERR The ID specified in XADD is equal or smaller")
    assert cli(riverbed, "--no-raw", "XRANGE", "s", "-", "+") == '1) 1) "1-1"\n   2) 1) "name"\n      2) "first entry"'
    assert cli(riverbed, "--no-raw", "XLEN", "s") == "(integer) 1"
    assert cli(riverbed, "--no-raw", "XREAD", "STREAMS", "s", "9") == "(nil)"
    assert cli(riverbed, "-n", "3", "DBSIZE") == "0"
    assert "redis_version:8.8.0" in cli(riverbed, "INFO", "server")
    assert cli(riverbed, "TYPE", "s") == "stream"
    assert cli(riverbed, "XSETID", "s", "7-7") == "OK"


def test_redis_cli_in_resp3(riverbed: Server) -> None:
    cli(riverbed, "XADD", "s", "1-1", "f", "v")
    shown = cli(riverbed, "-3", "--no-raw", "XREAD", "STREAMS", "s", "0")
    assert shown == '1# "s" => \n   1) 1) "1-1"\n      2) 1) "f"\n         2) "v"'
    shown = json.loads(cli(riverbed, "-3", "--json", "XINFO", "STREAM", "s"))
    assert shown["length"] == 1
    assert shown["last-entry"] == ["1-1", ["f", "v"]]


def test_redis_cli_reads_commands_from_a_pipe(riverbed: Server) -> None:
    commands = "MULTI\nXADD s 1-1 f v\nXADD s 2-1 f v\nEXEC\nXLEN s\nFLUSHALL\nDBSIZE\n"
    assert cli(riverbed, stdin=commands).split() == ["OK", "QUEUED", "QUEUED", "1-1", "2-1", "2", "OK", "0"]


def test_redis_cli_mass_insertion(riverbed: Server) -> None:
    commands = "".join(f"XADD s {number}-0 f v\r\n" for number in range(1, 2_001))
    assert "errors: 0, replies: 2000" in cli(riverbed, "--pipe", stdin=commands)
    assert cli(riverbed, "XLEN", "s") == "2000"


def test_redis_cli_scans_and_measures(riverbed: Server) -> None:
    for number in range(30):
        cli(riverbed, "XADD", f"k{number}", "1-1", "f", "v") if number < 3 else None
    assert sorted(cli(riverbed, "--scan", "--pattern", "k*").split()) == ["k0", "k1", "k2"]
    assert "Biggest stream found" in cli(riverbed, "--bigkeys")
    assert cli(riverbed, "-r", "3", "ECHO", "x").split() == ["x", "x", "x"]


def test_redis_cli_shuts_the_server_down(riverbed: Server) -> None:
    cli(riverbed, "XADD", "s", "1-1", "f", "v")
    assert cli(riverbed, "SHUTDOWN") == ""
    assert riverbed.wait_ended() == 0
    riverbed.start()
    assert cli(riverbed, "XLEN", "s") == "1"


def test_redis_cli_asks_for_the_password(riverbed: Server) -> None:
    assert cli(riverbed, "CONFIG", "SET", "requirepass", "secret") == "OK"
    assert cli(riverbed, "XLEN", "s") == "NOAUTH Authentication required."
    assert cli(riverbed, "-a", "secret", "--no-auth-warning", "XLEN", "s") == "0"
    assert "WRONGPASS" in cli(riverbed, "-a", "wrong", "--no-auth-warning", "PING")
