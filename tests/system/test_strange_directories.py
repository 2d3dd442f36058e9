"""Data directories and snapshots that a stranger has made: nothing outside of them is changed, and nothing hangs.

Each file and each directory of a store, and of a snapshot in it, is replaced by a link to something outside, by a pipe,
a socket, a device, or by a directory or a file; each field of a manifest or a plan by a path or by nonsense.  Then the
server's start and every tool is tried on it.  Each may succeed or refuse in one line; it may not follow the link, wait
for the pipe, or fall over.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import lmdb
import pytest
from click.testing import CliRunner
from crc32c import crc32c

from riverbed.server.commands.replay import Replayer
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.disk.locks.serving import hold_unserved
from riverbed.store.engine import Engine
from riverbed.store.errors import StoreError
from riverbed.store.options import Fsync, Options
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.store.tables.data_file.power_loss import begin_use, prepare_use
from riverbed.tools.cli import main
from riverbed.tools.offline.storestat import tables_at_rest
from tests.conftest import StartRiverbed
from tests.support.in_process import HandClock
from tests.support.servers import StartError
from tests.support.store.stores import Store, begin_file
from tests.support.trees import changes, tree
from tests.support.waiting import rewritten

LOG = "appendonlydir"
MANIFEST = f"{LOG}/appendonly.aof.manifest"
PLAN = "state/compact/plan.json"
SNAPSHOT = "snapshots/one"
# A process waits for the other end of a pipe, or reads a device without end.
PATIENCE_S = 300


@contextlib.contextmanager
def patience(what: str) -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped store that has every file there is: also what a killed compaction, repair or full sync leaves."""
    store = Store(tmp_path_factory.mktemp("template") / "store", segment_bytes=4096)
    directory = store.directory
    store.fill(b"s", 300)
    store.deliver(b"s", 100)
    store.checkpoint()
    begin_file(store.engine)
    store.fill(b"t", 5, db=3)
    store.engine.close()
    take_snapshot(directory, directory / SNAPSHOT, program="test")
    work = directory / "state/compact"
    work.mkdir()
    shutil.copy(directory / "state/data.mdb", work / "data.mdb")
    shutil.copy(directory / "state/lock.mdb", work / "old-lock.mdb")
    (directory / PLAN).write_text(json.dumps(PLANNED))
    assert prepare_use(directory / "state")
    begin_use(directory / "state")
    for name in ("repair/state", "replaced/state", f"sync-1/{LOG}"):
        (directory / name).mkdir(parents=True)
        (directory / name / "file").write_text("something")
    return directory


PLANNED = {"base": "appendonly.aof.7.base.aof", "incr": "appendonly.aof.70.incr.aof"}


class Place:
    """A copy of the template, and beside it what nobody may touch."""

    def __init__(self, template: Path, parent: Path) -> None:
        self.parent = parent
        self.directory = parent / "store"
        self.outside = parent / "outside"
        shutil.copytree(template, self.outside / "store")
        (self.outside / "file").write_text("precious")
        (self.outside / "empty").mkdir()
        self.template = template
        self.refresh()
        self.before = tree(self.outside)

    def refresh(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.template, self.directory)

    def assert_untouched(self, what: str) -> None:
        assert changes(self.before, tree(self.outside)) == [], what


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Place:
    return Place(template, tmp_path)


# -- who is tried ------------------------------------------------------------------------------------------------------

READING: list[list[str]] = [
    ["stat", "{dir}"],
    ["check", "{dir}"],
    ["check", "{dir}", "--deep", "--work", "{work}"],
    ["check", "{dir}/snapshots/one"],
    ["dump", "{dir}", "s"],
    ["dump", "{dir}"],
    ["dump", "{dir}/state"],
    ["dump", f"{{dir}}/{MANIFEST}"],
    ["dump", f"{{dir}}/{LOG}"],
    ["dump", "{dir}/snapshots/one", "s"],
    ["dump", "{dir}/snapshots/one/streams.jsonl"],
    ["stat", "{dir}/snapshots/one"],
    ["replay", "{dir}", "{new}"],
    ["restore", "{dir}/snapshots/one", "{new}"],
    ["snapshot", "{dir}", "{new}"],
]
WRITING: list[list[str]] = [
    ["check", "{dir}", "--repair"],
    ["compact", "{dir}", "--yes"],
    ["compact", "{dir}", "--dry-run"],
    ["snapshot", "{dir}", "--keep", "1"],
]


def run(words: list[str], place: Place) -> str:
    """Run a tool -> its output.  It ends in one of the ways that are foreseen."""
    new, work = place.parent / "new", place.parent / "work"
    shutil.rmtree(new, ignore_errors=True)
    work.mkdir(exist_ok=True)
    asked = [word.format(dir=place.directory, new=new, work=work) for word in words]
    with patience(" ".join(words)):
        result = CliRunner().invoke(main, asked)
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exc_info)
    assert result.exit_code in (0, 1, 2), words
    place.assert_untouched(" ".join(words))
    return result.stderr


def start(place: Place) -> str:
    """Open the directory as a server does, write, and close it -> why it could not be opened."""
    options = Options(fsync=Fsync.NO, map_bytes=1 << 28, reserve_bytes=0)
    with patience("the start"):
        try:
            engine = Engine.open(place.directory, execute=Replayer().execute, clock=HandClock(), options=options)
        except (StoreError, OSError, lmdb.Error) as error:
            reason = f"{error}"
        else:
            begin_file(engine)
            engine.close()
            reason = ""
    place.assert_untouched("the start")
    return reason


def try_all(place: Place, damage: Callable[[], object]) -> None:
    damage()
    for words in READING:
        run(words, place)
    start(place)
    for words in WRITING:
        place.refresh()
        damage()
        run(words, place)


# -- what is in its place ----------------------------------------------------------------------------------------------


def paths(directory: Path, *, files: bool) -> list[str]:
    found = []
    for parent, directories, names in os.walk(directory):
        found += [str(Path(parent, name).relative_to(directory)) for name in (names if files else directories)]
    return sorted(found)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(path: Path, place: Place) -> None:
    """To the same file of another store: what is written there does harm, and looks right."""
    path.symlink_to(place.outside / "store" / path.relative_to(place.directory))


def _link_to_text(path: Path, place: Place) -> None:
    path.symlink_to(os.path.relpath(place.outside / "file", path.parent))


def _dangling(path: Path, place: Place) -> None:
    path.symlink_to(place.outside / "made")


def _link_to_device(path: Path, place: Place) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path, place: Place) -> None:
    os.mkfifo(path)


def _socket(path: Path, place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_RDONLY)  # names of sockets are short
        try:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def _directory(path: Path, place: Place) -> None:
    path.mkdir()


def _file(path: Path, place: Place) -> None:
    path.write_text("no directory")


def _link_to_empty(path: Path, place: Place) -> None:
    path.symlink_to(place.outside / "empty")


FILE_KINDS = (_link, _link_to_text, _dangling, _link_to_device, _pipe, _socket, _directory)
DIRECTORY_KINDS = (_link, _link_to_empty, _dangling, _pipe, _file)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_file_that_is_something_else_harms_nobody(place: Place, kind: Callable[[Path, Place], None]) -> None:
    for name in (*paths(place.template, files=True), "state/in-use.new", "state/compact/old.mdb"):
        place.refresh()

        def damage(path: Path = place.directory / name) -> None:
            remove(path)
            kind(path, place)

        try_all(place, damage)


@pytest.mark.parametrize("kind", DIRECTORY_KINDS)
def test_a_directory_that_is_something_else_harms_nobody(place: Place, kind: Callable[[Path, Place], None]) -> None:
    for name in paths(place.template, files=False):
        place.refresh()

        def damage(path: Path = place.directory / name) -> None:
            remove(path)
            kind(path, place)

        try_all(place, damage)


@pytest.mark.parametrize("name", [MANIFEST, "state/data.mdb", "state/lock.mdb", "state/in-use", PLAN])
def test_a_link_is_refused_by_its_name(place: Place, name: str) -> None:
    remove(place.directory / name)
    _link(place.directory / name, place)
    assert f"{place.directory / name} is a symbolic link" in start(place)
    assert not (place.directory / "state").exists() or tree(place.directory)
    assert f"{place.directory / name} is a symbolic link" in " ".join(run(["compact", "{dir}", "--yes"], place).split())


def test_the_directory_itself_may_be_named_by_a_link(place: Place, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(place.directory)
    shutil.rmtree(place.directory / "state/compact")
    (place.directory / "state/in-use").unlink()
    Engine.open(link, execute=Replayer().execute, clock=HandClock(), options=Options(reserve_bytes=0)).close()


# -- what is written in them -------------------------------------------------------------------------------------------

PATHS = ["../../outside/file", "..", ".", "", "/", "a/b", "appendonly.aof.manifest", "a\0b", "x" * 300, "\x1b[2J"]
VALUES = [*PATHS, None, True, -1, 0, 1 << 70, 1e300, [], {}, ["../../outside/file"], {"base": "/"}]


def test_a_plan_may_name_nothing_but_files_of_the_log(place: Place) -> None:
    outside = str(place.outside / "file")
    values = [*VALUES, outside, f"../{LOG}/appendonly.aof.7.base.aof", "state/../../outside/file"]
    plans = [PLANNED | {field: value} for value in values for field in ("base", "incr")]
    plans += [{"base": value, "incr": value} for value in values]
    for plan in (*plans, *values):
        place.refresh()
        text = json.dumps(plan)
        log = tree(place.directory / LOG)
        (place.directory / PLAN).write_text(text)
        assert PLAN in start(place), text
        assert tree(place.directory / LOG) == log
        for words in (["check", "{dir}", "--repair"], ["compact", "{dir}", "--yes"], ["compact", "{dir}", "--dry-run"]):
            place.refresh()
            (place.directory / PLAN).write_text(text)
            run(words, place)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"base": 1', b"\0" * 5000])
def test_a_plan_that_is_torn_is_none(place: Place, text: bytes) -> None:
    (place.directory / PLAN).write_bytes(text)
    assert start(place) == ""


def _guarded(lines: bytes) -> bytes:
    return lines + b"#CK:crc32c=%08x\n" % crc32c(lines)


def test_a_manifest_may_name_nothing_but_files_beside_it(place: Place) -> None:
    whole = (place.directory / MANIFEST).read_bytes()
    lines = whole.splitlines(keepends=True)[:-1]
    texts = []
    names = [*PATHS, str(place.outside / "file"), "appendonly.aof.1.incr.aof"]
    for name in names:
        quoted = '"' + name.replace("\0", "\\x00").replace("\x1b", "\\x1b") + '"'
        for number, line in enumerate(lines):
            if line.startswith(b"file "):
                words = line.split(b" ")
                words[1] = quoted.encode()
                texts.append([*lines[:number], b" ".join(words), *lines[number + 1 :]])
        texts.append([*lines, f"file {quoted} seq 1 type h\n".encode()])
    for number, line in enumerate(lines):
        words = line.split(b" ")
        for at in range(1, len(words)):
            for value in (b"-1", b"99999999999999999999", b"0", b"x", b"../../outside/file"):
                changed = b" ".join([*words[:at], value, *words[at + 1 :]]) + b"\n"
                texts += [[*lines[:number], changed, *lines[number + 1 :]]]
    for found in texts:
        place.refresh()
        (place.directory / MANIFEST).write_bytes(b"".join(found))
        start(place)
        (place.directory / MANIFEST).write_bytes(_guarded(b"".join(found)))
        for words in (["check", "{dir}"], ["check", "{dir}", "--repair"], ["replay", "{dir}", "{new}"]):
            run(words, place)
        start(place)


def _fields(value: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Where each value of some JSON stands."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _fields(inner, (*at, key))


def _replaced(value: object, at: tuple[object, ...], new: object) -> object:
    if not at:
        return new
    if isinstance(value, dict):
        return {key: _replaced(inner, at[1:], new) if key == at[0] else inner for key, inner in value.items()}
    assert isinstance(value, list)
    return [_replaced(inner, at[1:], new) if key == at[0] else inner for key, inner in enumerate(value)]


def test_no_field_of_a_snapshot_leads_out_of_it(place: Place) -> None:
    home = place.directory / SNAPSHOT
    values = json.loads((home / "manifest.json").read_text())
    del values["crc32c"]
    for at in _fields(values):
        for value in VALUES:
            text = json.dumps(_replaced(values, at, value), indent=1).encode().removesuffix(b"\n}")
            (home / "manifest.json").write_bytes(text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text))
            for words in (["check", "{dir}/snapshots/one"], ["stat", "{dir}/snapshots/one"]):
                run(words, place)
            run(["restore", "{dir}/snapshots/one", "{new}"], place)
    place.refresh()
    streams = [json.loads(line) for line in (home / "streams.jsonl").read_bytes().splitlines()]
    manifest = json.loads((home / "manifest.json").read_text())
    del manifest["crc32c"]
    for at in _fields(streams[0]):
        for value in VALUES:
            lines = b"".join(
                json.dumps(each).encode() + b"\n" for each in (_replaced(streams[0], at, value), *streams[1:])
            )
            (home / "streams.jsonl").write_bytes(lines)
            manifest["files"]["streams.jsonl"] = {"bytes": len(lines), "crc32c": f"{crc32c(lines):08x}"}
            text = json.dumps(manifest, indent=1).encode().removesuffix(b"\n}")
            (home / "manifest.json").write_bytes(text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text))
            for words in (["check", "{dir}/snapshots/one"], ["stat", "{dir}/snapshots/one"]):
                run(words, place)


# -- a server ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state/lock.mdb", "state/data.mdb", MANIFEST, "state", LOG])
def test_a_server_refuses_links_in_one_line(place: Place, start_riverbed: StartRiverbed, name: str) -> None:
    remove(place.directory / name)
    _link(place.directory / name, place)
    with pytest.raises(StartError) as refusal:
        start_riverbed(place.directory)
    assert f"{place.directory / name} is a symbolic link" in str(refusal.value)
    assert "Traceback" not in str(refusal.value)
    place.assert_untouched("the server")
    remove(place.directory)


@pytest.mark.parametrize("contents", [b"no tables", bytes(range(256)) * 64])
def test_a_server_refuses_tables_that_are_none_in_one_line_or_makes_them_again(
    place: Place, start_riverbed: StartRiverbed, contents: bytes
) -> None:
    path = place.directory / "state/data.mdb"
    path.write_bytes(contents)
    with pytest.raises(StartError) as refusal:
        start_riverbed(place.directory, options={"auto-repair": "no"})
    assert "cannot be opened: LMDB says" in str(refusal.value)
    assert "Traceback" not in str(refusal.value)
    assert path.read_bytes() == contents
    server = start_riverbed(place.directory)
    assert "made the tables again: " in server.log_text()
    with server.client() as client:
        assert client.ask("DBSIZE") != b":0\r\n"
    kept = place.directory / "replaced/state-2/data.mdb"  # something else is kept as `state` already
    assert kept.read_bytes() == contents
    assert server.stop() == 0


def test_a_server_takes_no_snapshots_elsewhere(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = start_riverbed()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / ".temp-snapshot-12345678").mkdir(parents=True)
    (server.directory / "snapshots").symlink_to(elsewhere)
    with server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        for words in (("SNAPSHOT",), ("SNAPSHOT", "KEEP", 1), ("SNAPSHOTS",)):
            reply = client.ask("RIVERBED", *words)
            assert reply.startswith(b"-ERR ")
            assert b"is a symbolic link" in reply
    assert list(tree(elsewhere)) == [".", ".temp-snapshot-12345678"]


# -- who only reads writes nothing -------------------------------------------------------------------------------------

LOOKING = [words for words in READING if words[0] in ("stat", "dump")] + [
    ["check", "{dir}"],
    ["check", "{dir}", "--deep", "--work", "{work}"],
    ["replay", "{dir}", "{new}"],
    ["snapshot", "{dir}", "{new}"],
]


@pytest.fixture
def sound(place: Place) -> Place:
    """With nothing in it that was interrupted, and as it comes in an archive: LMDB's lock file stays at home."""
    for name in ("state/compact", "repair", "sync-1"):
        shutil.rmtree(place.directory / name)
    for name in ("state/in-use", "state/lock.mdb"):
        (place.directory / name).unlink()
    return place


def test_readers_of_an_archive_write_nothing(sound: Place) -> None:
    before = tree(sound.directory)
    for words in LOOKING:
        told = run(words, sound)
        assert "cannot" not in told, told
        assert changes(before, tree(sound.directory)) == [], words


def test_readers_write_nothing_but_their_place_in_the_lock_file(sound: Place) -> None:
    assert start(sound) == ""  # which makes one
    before = tree(sound.directory)
    for words in LOOKING:
        assert "cannot" not in run(words, sound)
        assert set(changes(before, tree(sound.directory))) <= {"changed: state/lock.mdb"}, words


@pytest.mark.needs_root
def test_another_user_with_the_rights_reads_what_nobody_serves(sound: Place) -> None:
    assert start(sound) == ""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # those of the tests are for one user alone
        Path(name).chmod(0o755)
        directory = Path(name, "store")
        shutil.copytree(sound.directory, directory)
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for words in (["stat", str(directory)], ["check", str(directory)], ["dump", str(directory), "s"]):
            CliRunner().invoke(main, words, catch_exceptions=False)  # what is imported late, others may not read
            before = tree(directory)
            os.seteuid(65534)
            try:
                result = CliRunner().invoke(main, words, catch_exceptions=False)
            finally:
                os.seteuid(0)
            assert result.exit_code == 0, result.stderr
            assert changes(before, tree(directory)) == [], words


def test_no_server_starts_while_an_archive_is_read(sound: Place) -> None:
    with tables_at_rest(sound.directory):
        assert "is being read by another process" in start(sound)
    with lock_directory(sound.directory):
        assert "is in use by another process" in start(sound)
    assert start(sound) == ""


def test_a_server_waits_for_who_looks_whether_one_runs(sound: Place) -> None:
    looker = hold_unserved(sound.directory)
    assert looker is not None
    timer = threading.Timer(0.1, os.close, (looker,))
    timer.start()
    assert start(sound) == ""
    timer.join()


def test_a_server_starts_while_its_store_is_read(sound: Place, start_riverbed: StartRiverbed) -> None:
    assert start(sound) == ""
    with tables_at_rest(sound.directory), start_riverbed(sound.directory).client() as client:
        assert client.ask("PING") == b"+PONG\r\n"


@pytest.mark.needs_root
@pytest.mark.parametrize("state", ["kept", "lost"])
def test_what_root_makes_in_the_directory_of_a_user_is_of_that_user(
    start_riverbed: StartRiverbed, tmp_path: Path, state: str
) -> None:
    """Its own server could not start: one command as root had taken the manifest away."""
    server = start_riverbed(options={"log-segment-bytes": 1 << 16})
    with server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
    server.stop()
    if state == "lost":
        shutil.rmtree(server.directory / "state")
    for path in (server.directory, *server.directory.rglob("*")):
        os.chown(path, 65534, 65534)
    server.start()
    with server.client() as client:
        client.pipeline([("XADD", "s", "*", "f", "v" * 1000) for _ in range(200)])
        assert client.ask("SAVE") == b"+OK\r\n"
        assert client.ask("RIVERBED", "SNAPSHOT", "one").startswith(b"*")
    rewritten(server)
    server.kill()
    assert foreign(server.directory) == []
    lines = tmp_path / "lines"
    lines.write_text('{"fields": {"f": "v"}}\n')
    for words in (
        ["load", server.directory, "s", lines],
        ["snapshot", server.directory],
        ["compact", server.directory],
    ):
        done = CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert foreign(server.directory) == [], words


def foreign(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.stat().st_uid != 65534]
