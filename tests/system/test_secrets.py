"""Secrets are planted wherever there is a place for one, and looked for in all that others can read.

`tests/server/commands/test_redaction.py` compares what single commands show with Redis.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.raw import RawClient
from tests.support.servers import IMPORTED_FROM, ROOT, RiverbedServer, free_port
from tests.support.tls import TlsClient, TlsRiverbed, client_context
from tests.support.waiting import until

MARK = "pl4nt3d"  # in every secret
DEFAULT, BOB, PRIMARY, KEY, CLIENT_KEY, WRONG, NEW, TYPED = (f"{MARK}-{number}" for number in range(8))

pytestmark = pytest.mark.usefixtures("real_start")


class Secretive(TlsRiverbed):
    """A server whose every secret is in its configuration file."""

    def command(self) -> list[str]:
        lines = [f"{name} {value}\n" for name, value in self.settings().items()]
        path = self.directory.parent / "secretive.conf"
        path.touch(0o600)
        path.write_text(
            "".join(lines) + f"user bob on >{BOB} ~mine* +@all -@admin\nuser default on >{DEFAULT} ~* +@all\n"
        )
        return [*self.program(), str(path)]

    def client(self, *, timeout_s: float = 60.0) -> RawClient:
        client = TlsClient(self.port, client_context(self.certificates), timeout_s=timeout_s)
        client.ask("AUTH", DEFAULT)
        return client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Secretive]:
    certificates = Certificates.make(tmp_path / "certificates")
    own = certificates.authority.issue("own", password=KEY)
    client = certificates.authority.issue("clients", password=CLIENT_KEY)
    options = {
        "loglevel": "debug",
        "masterauth": PRIMARY,
        "masteruser": f"{MARK}-user",
        "tls-auth-clients": "no",
        "tls-cert-file": own.cert,
        "tls-key-file": own.key,
        "tls-key-file-pass": KEY,
        "tls-client-cert-file": client.cert,
        "tls-client-key-file": client.key,
        "tls-client-key-file-pass": CLIENT_KEY,
        "slowlog-log-slower-than": 0,
        "slowlog-max-len": 10_000,
        "latency-monitor-threshold": 1,
        "metrics-port": free_port(),
        "enable-debug-command": "yes",
    }
    directory = tmp_path / "data"
    directory.mkdir()
    server = Secretive(directory, tmp_path / "logs", options)
    server.certificates = certificates
    with server:
        yield server


def use(server: Secretive) -> None:
    """Let clients say secrets in right and in wrong places."""
    said = [
        ("AUTH", DEFAULT),
        ("AUTH", "bob", WRONG),
        ("AUTH", WRONG),
        ("AUTH", "bob", WRONG, "more"),
        ("AUHT", WRONG),
        ("HELLO", "3", "AUTH", "bob", WRONG),
        ("HELLO", "3", "AUHT", "bob", WRONG),
        ("HELLO", "2", "AUTH", "default", DEFAULT),
        ("CONFIG", "SET", "masterauth", NEW),
        ("CONFIG", "SET", "masterauth", PRIMARY, "port", "99999"),
        ("CONFIG", "SET", "requirepas", NEW),
        ("CONFIG", "SET", "tls-key-file-pass", TYPED),
        ("CONFIG", "SET", "tls-client-key-file-pass", TYPED),
        ("CONFIG", "REWRITE"),
        ("ACL", "SETUSER", "carl", "on", f">{NEW}", "~*", "+@all"),
        ("ACL", "SETUSER", "carl", TYPED),
        ("ACL", "SETUSER", "carl", f"<{TYPED}"),
        ("ACL", "SETUSER", "carl", f"#{TYPED}"),
        ("ACL", "SETUSR", "carl", f">{TYPED}"),
        ("ACL", "DRYRUN", "bob", "AUTH", "bob", BOB),
        ("ACL", "DRYRUN", "bob", "CONFIG", "SET", "requirepass", TYPED),
        ("ACL", "DRYRUN", "bob", "CONFG", TYPED),
        ("MIGRATE", "127.0.0.1", "1", "key", "0", "10", "AUTH", TYPED),
        ("COMMAND", "GETKEYS", "AUTH", "bob", BOB),
        ("MULTI",),
        ("CONFIG", "SET", "masterauth", NEW),
        ("ACL", "SETUSER", "carl", f">{NEW}"),
        ("AUTH", "bob", WRONG),
        ("EXEC",),
    ]
    with server.client() as client:
        for words in said:
            client.ask(*words)
            client.ask("AUTH", DEFAULT)
    with server.client() as bob:
        assert bob.ask("AUTH", "bob", BOB) == b"+OK\r\n"
        for words in (("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SLOWLOG", "GET"), ("MONITOR",), ("XLEN", "other")):
            assert bob.ask(*words).startswith(b"-NOPERM")
        bob.ask("AUTH", "bob", WRONG)


PAGES = [
    *(["INFO", "everything"], ["CLIENT", "LIST"], ["CLIENT", "INFO"], ["SLOWLOG", "GET", "-1"], ["ACL", "LOG", "1000"]),
    *(["ACL", "LIST"], ["ACL", "GETUSER", "bob"], ["ACL", "GETUSER", "default"], ["LATENCY", "DOCTOR"]),
    *(["LATENCY", "LATEST"], ["MEMORY", "STATS"], ["MEMORY", "DOCTOR"], ["COMMAND", "DOCS"], ["ROLE"]),
    *(["CONFIG", "GET", "[^mrtu]*"], ["KEYS", "*"]),
]


def processes(server: Secretive) -> str:
    """The command lines of the server and of its children."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    lines = []
    for pid in (str(server.pid), *children):
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_text())
    return "\n".join(lines)


def test_no_page_monitor_log_or_process_shows_a_secret(server: Secretive, tmp_path: Path) -> None:
    shown = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            shown.append(processes(server))

    looker = threading.Thread(target=look)
    with server.client() as monitor, server.client() as client:
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        looker.start()
        use(server)
        assert client.ask("RIVERBED", "SNAPSHOT", "secrets").startswith(b"*")
        assert client.ask("BGREWRITEAOF").startswith(b"+")
        client.ask("ECHO", "the last one")
        lines = b""
        while b"the last one" not in lines:
            lines += monitor.reply()
        assert lines.count(b"(redacted)") > 30
        pages = b"".join(client.ask(*page) for page in PAGES)
        with RawClient(int(str(server.options["metrics-port"]))) as metrics:
            metrics.send_bytes(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            pages += metrics.rest_until_closed()
        assert b"riverbed_" in pages[-1000:]
        assert b"(redacted)" in pages
        until(lambda: b"aof_rewrite_in_progress:0" in client.ask("INFO", "persistence"), "the end of a rewrite")
    over.set()
    looker.join()
    assert "rewrite" in "".join(shown), "no child was seen"
    server.stop()
    log = server.log_text()
    assert "acl_access_denied" in pages.decode("latin-1")
    everything = {"monitor": lines, "pages": pages, "processes": "".join(shown).encode(), "log": log.encode()}
    everything |= {str(path): path.read_bytes() for path in server.directory.rglob("*") if path.is_file()}
    for place, text in everything.items():
        assert MARK.encode() not in text, (place, text[max(text.find(MARK.encode()) - 200, 0) :][:300])


@pytest.mark.parametrize(
    "line",
    [
        f"requirepass {TYPED} more",
        f'requirepass "{TYPED}',
        f"masterauth {TYPED} {TYPED}",
        f"requirepas {TYPED}",
        f"user bob on >{TYPED} +nosuch",
        f"user bob on {TYPED}",
        f"user bob on <{TYPED}",
        f"user bob on !{TYPED}",
        f"user bob on #{TYPED}",
        f"user bob on >{TYPED}\nuser bob on >{TYPED}",
        f'user bob on ">{TYPED}',
        f"user bob on (>{TYPED}",
        f"user bob on (>{TYPED})",
        f"user bob on (~x {TYPED})",
        f"tls-port 1\ntls-key-file-pass {TYPED}",
    ],
)
def test_a_start_that_fails_shows_no_secret(tmp_path: Path, line: str) -> None:
    (tmp_path / "secretive.conf").write_text(f"port {free_port()}\ndir {tmp_path}\n{line}\n")
    said = started(tmp_path / "secretive.conf")
    assert said.startswith("riverbed-server: ")
    assert MARK not in said


@pytest.mark.parametrize("line", ["user bob on {}", "user bob on >{} +nosuch", "user bob on (>{}", "usr bob on >{}"])
def test_a_file_of_users_that_is_refused_shows_no_secret(tmp_path: Path, line: str) -> None:
    users = tmp_path / "users.acl"
    users.write_text("")
    server = RiverbedServer(tmp_path, tmp_path / "logs", {"aclfile": users, "loglevel": "debug"})
    with server, server.client() as client:
        users.write_text(line.format(TYPED) + "\n")
        reply = client.ask("ACL", "LOAD")
        assert reply.startswith(b"-")
        assert MARK.encode() not in reply
        assert MARK not in server.log_text()
    (tmp_path / "secretive.conf").write_text(f"port {free_port()}\ndir {tmp_path}\naclfile {users}\n")
    assert MARK not in started(tmp_path / "secretive.conf")


def started(conf: Path) -> str:
    """What a server says that does not start."""
    program = [sys.executable, "-m", "riverbed.server.main", str(conf)]
    status, said = run(program, ROOT)
    assert status != 0
    return said


def run(program: list[str], directory: Path) -> tuple[int, str]:
    """The exit status of a program, and all that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(IMPORTED_FROM)}
    done = subprocess.run(
        program,
        check=False,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout + done.stderr


RIGHT = f"redis://bob:{BOB}@127.0.0.1:{{port}}"
WRONGS = [
    f"redis://bob:{TYPED}@127.0.0.1:{{port}}",
    f"redis://bob:{TYPED}@127.0.0.1:{{port}}/x",
    f"redis://bob:{TYPED}@127.0.0.1:0x",
    f"redis://bob:{TYPED}@",
    f"rediss://bob:{TYPED}@127.0.0.1:{{port}}",
    f"rediz://bob:{TYPED}@127.0.0.1:{{port}}",
    f"redis:/bob:{TYPED}@127.0.0.1:{{port}}",
]
READING = [("stat", "{}"), ("dump", "{}", "s"), ("import", "{}", "{out}")]
OTHERS = [
    *(("read", "{}", "s"), ("compare", "{}", "{}")),
    *(("top", "{}"), ("load", "{}", "s"), ("check", "{}"), ("snapshot", "{}", "{out}"), ("restore", "{}", "{out}")),
    *(("replay", "{}", "{out}"), ("compact", "{}", "--yes")),
]


@pytest.fixture
def with_bob(riverbed: RiverbedServer) -> RiverbedServer:
    with riverbed.client() as client:
        assert client.ask("ACL", "SETUSER", "bob", "on", f">{BOB}", "~*", "+@all") == b"+OK\r\n"
        client.ask("XADD", "s", "1-1", "f", "v")
    return riverbed


def tool(server: RiverbedServer, words: tuple[str, ...], target: str, out: Path) -> tuple[int, str]:
    """The exit status of `riverbed WORDS`, and all that it prints."""
    given = [word.format(target.format(port=server.port), out=out) for word in words]
    return run([sys.executable, "-m", "riverbed.tools.entry", *given], out.parent)


@pytest.mark.once  # the tools are never compiled
@pytest.mark.parametrize("words", [*READING, *OTHERS], ids=lambda words: words[0])
def test_tools_that_fail_show_no_secret(with_bob: RiverbedServer, tmp_path: Path, words: tuple[str, ...]) -> None:
    for target in WRONGS:
        status, said = tool(with_bob, words, target, tmp_path / "out")
        # `load` makes a data directory of a mistyped URL
        assert (status == 2 or words[0] == "load") and said, (target, said)
        assert MARK not in said


@pytest.mark.once
@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_tools_that_do_their_work_show_no_secret(
    with_bob: RiverbedServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    status, said = tool(with_bob, words, RIGHT, tmp_path / "out")
    assert status == 0, said
    assert MARK not in said
