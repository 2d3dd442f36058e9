from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from riverbed.tools.cli import main
from riverbed.tools.console.console import Failure, ProgressBar
from riverbed.tools.live.redisclient import ReplyError
from riverbed.tools.loading.sinks import DirectorySink, ServerSink
from riverbed.tools.subcommands import load as load_module
from tests.conftest import broken_invariants
from tests.support.program import printed, report, run
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer

StartRiverbed = Callable[..., RiverbedServer]
StartRedis = Callable[..., RedisServer]
LINES = "".join(f'{{"id": "{number}-0", "fields": {{"n": "{number}"}}}}\n' for number in range(1, 1001))


load = partial(report, "load")


def refused(*arguments: object, given: str | bytes | None = None) -> str:
    result = run("load", *arguments, given=given)
    assert (result.exit_code, result.stdout) == (2, "")
    return " ".join(result.stderr.split())


dumped = partial(printed, "dump")


@pytest.fixture(params=["directory", "riverbed", "redis"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory, a server of ours, and a Redis: all of them empty."""
    if request.param == "directory":
        return str(tmp_path / "store")
    start = request.getfixturevalue("start_redis" if request.param == "redis" else "start_riverbed")
    return f"localhost:{start().port}"


def test_entries_keep_their_ids(target: str) -> None:
    report = load(target, "s", given=LINES)
    assert (report["entries"], report["last_id"]) == (1000, "1000-0")
    assert dumped(target, "s") == [json.loads(line) for line in LINES.splitlines()]


def test_what_was_dumped_can_be_loaded_and_is_the_same(target: str) -> None:
    odd = (
        '{"id": "1-1", "fields": {"f": "ü", "g": ""}}\n'
        '{"id": "1-2", "pairs": [["f", "1"], ["f", "2"]]}\n'
        '{"id": "1-3", "pairs_base64": [["/w==", "AAE="]]}\n'
    )
    load(target, "odd", given=odd)
    assert dumped(target, "odd") == [json.loads(line) for line in odd.splitlines()]


def test_a_second_load_goes_on_behind_the_first(target: str) -> None:
    lines = LINES.splitlines(keepends=True)
    load(target, "s", given="".join(lines[:600]))
    load(target, "s", given="".join(lines[600:]))
    assert len(dumped(target, "s")) == 1000


def test_new_ids_are_given_where_there_are_none_or_when_asked_for(target: str) -> None:
    load(target, "s", given='{"a": 1}\n\n{"a": 2}\n')
    load(target, "s", "--new-ids", given='{"id": "1-1", "fields": {"a": "3"}}\n')
    found = dumped(target, "s")
    assert [entry["fields"]["a"] for entry in found] == ["1", "2", "3"]
    assert all(len(entry["id"].partition("-")[0]) == 13 for entry in found)


def test_another_database_is_loaded_into(target: str) -> None:
    load(target, "s", "--db", 3, given=LINES)
    assert len(dumped(target, "s", "--db", 3)) == 1000


def test_an_id_that_does_not_ascend_ends_the_load_and_it_can_go_on(target: str) -> None:
    lines = LINES.splitlines(keepends=True)
    wrong = [*lines[:700], '{"id": "5-0", "fields": {"n": "x"}}\n', *lines[700:]]
    said = refused(target, "s", given="".join(wrong))
    assert (
        "line 701: the ID 5-0 is not above 700-0, the last one of the stream; 700 entries before that are loaded"
        in said
    )
    assert len(dumped(target, "s")) == 700
    later = refused(target, "s", "--skip", 700, given="".join([*wrong, "no line\n"]))
    assert "0 entries before that are loaded, behind the 700 that were left out" in later
    assert load(target, "s", "--skip", 701, given="".join(wrong))["entries"] == 300
    assert dumped(target, "s") == [json.loads(line) for line in lines]


def test_a_line_that_is_no_entry_ends_the_load(target: str) -> None:
    said = refused(target, "s", given='{"a": 1}\n[]\n{"a": 2}\n')
    assert "line 2: not an object; 1 entry before that is loaded" in said
    assert len(dumped(target, "s")) == 1


@pytest.mark.parametrize("given", ["no JSON\n", "\n[]\n"])
def test_a_file_of_another_kind_leaves_no_store_behind(tmp_path: Path, given: str) -> None:
    said = refused(tmp_path / "data", "s", given=given)
    assert "; nothing is loaded" in said
    assert not (tmp_path / "data").exists()


def test_csv_becomes_fields(target: str, tmp_path: Path) -> None:
    path = tmp_path / "trades.csv"
    path.write_bytes('\ufefftime,symbol,note\n5,ACME,"two\nlines, and a comma"\n7,ÄÖ,\n'.encode())
    load(target, "s", path, "--id-field", "time")
    assert dumped(target, "s") == [
        {"id": "5-0", "fields": {"symbol": "ACME", "note": "two\nlines, and a comma"}},
        {"id": "7-0", "fields": {"symbol": "ÄÖ", "note": ""}},
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"a,b\n1\n", "line 2: 1 values for 2 fields"),
        (b"a,a\n1,2\n", "line 1: the names of the fields must differ"),
        (b"a,\n1,2\n", "none be empty"),
        (b"a,b\n\xff,2\n", "line 2: not UTF-8"),
        (b'a,b\n"1,2\n', "unexpected end of data"),
    ],
)
def test_csv_that_is_none_is_refused(tmp_path: Path, given: bytes, words: str) -> None:
    assert words in refused(tmp_path / "store", "s", "--format", "csv", given=given)


def test_csv_without_the_field_that_has_the_id_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path / "store", "s", "--format", "csv", "--id-field", "when", given="a,b\n1,2\n")
    assert "line 1: there is no field when" in said


def test_nothing_is_no_entry_and_no_failure(target: str) -> None:
    assert load(target, "s", given="")["entries"] == 0


def test_a_loaded_directory_is_sound_and_a_server_starts_on_it(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    load(tmp_path / "store", "s", given=LINES)
    assert broken_invariants(tmp_path / "store") == []
    server = start_riverbed(tmp_path / "store")
    with server.client() as client:
        assert client.ask("XLEN", "s") == b":1000\r\n"
        assert client.ask("XADD", "s", "2000-0", "f", "v") == b"$6\r\n2000-0\r\n"


def test_a_stream_whose_deadline_has_passed_is_no_stream_to_append_to(start_riverbed: StartRiverbed) -> None:
    """Its server was stopped before the deadline, and deletes it with all that is in it when it starts."""
    server = start_riverbed()
    with server.client() as client:
        client.ask("XADD", "s", "9-0", "f", "old")
        client.ask("XADD", "t", "9-0", "f", "old")
        client.ask("PEXPIRE", "s", 300)
        client.ask("PEXPIRE", "t", 3_600_000)
    assert server.stop() == 0
    time.sleep(0.4)
    for key in ("s", "t"):
        assert load(server.directory, key, given='{"id": "10-0", "fields": {"f": "new"}}\n')["entries"] == 1
    assert load(server.directory, "s", given='{"id": "11-0", "fields": {"f": "new"}}\n')["entries"] == 1
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "s") == client.ask("XLEN", "t") == b":2\r\n"
        assert client.ask("PTTL", "s") == b":-1\r\n"


def test_groups_of_the_stream_are_as_they_were(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    server.stop()
    load(server.directory, "s", given=LINES)
    server.start()
    with server.client() as client:
        reply = client.ask("XREADGROUP", "GROUP", "g", "alice", "COUNT", "1", "STREAMS", "s", ">")
        assert b"1-0" in reply


def test_a_directory_in_use_is_refused(riverbed: RiverbedServer) -> None:
    assert "is in use by another process; stop its server first" in refused(riverbed.directory, "s", given=LINES)


def test_a_key_of_another_type_is_refused(start_redis: StartRedis) -> None:
    server = start_redis()
    with RawClient(server.port) as client:
        client.ask("SET", "s", "v")
    assert "WRONGTYPE" in refused(f"localhost:{server.port}", "s", given=LINES)


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be reached" in refused("localhost:1", "s", given=LINES)
    assert "No such file" in refused(tmp_path / "store", "s", tmp_path / "none.jsonl")
    assert "is not a directory" in refused(tmp_path / "file", "s", given=LINES)
    assert "there is no database 16" in refused(tmp_path / "store", "s", "--db", 16, given=LINES)


def test_a_value_of_csv_may_be_long(tmp_path: Path) -> None:
    value = "x" * 200_000
    assert load(tmp_path / "data", "s", "--format", "csv", given=f"a,b\n1,{value}\n")["entries"] == 1
    assert dumped(tmp_path / "data", "s")[0]["fields"] == {"a": "1", "b": value}


def test_a_snapshot_is_not_loaded_into(tmp_path: Path) -> None:
    load(tmp_path / "data", "s", given=LINES)
    assert run("snapshot", tmp_path / "data", tmp_path / "frozen").exit_code == 0
    assert "is a snapshot, which never changes" in refused(tmp_path / "frozen", "s", given=LINES)
    assert {path.name for path in (tmp_path / "frozen").iterdir()} == {"data.mdb", "manifest.json", "streams.jsonl"}


def test_a_load_that_cannot_go_on_says_how_much_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: DirectorySink, key: bytes, entry_id: bytes | None, words: list[bytes], line: int) -> None:
        self.loaded = 300
        raise Failure("the disk is nearly full")

    monkeypatch.setattr(DirectorySink, "add", fail)
    told = refused(tmp_path / "data", "s", given=LINES)
    assert told == "riverbed: the disk is nearly full; at least 300 entries before that are loaded"


class PartlyRefusing:
    """A server that has no room for the third and fourth of the entries that it is sent together."""

    address = "full:6379"

    def __init__(self) -> None:
        self.sent = 0

    def call(self, *words: object) -> int:
        assert words[0] == b"EXISTS"
        return 0

    def send(self, commands: list[list[bytes]]) -> None:
        self.ids = [words[2] for words in commands]

    def receive(self) -> bytes:
        self.sent += 1
        if self.sent in (3, 4):
            raise ReplyError("OOM command not allowed")
        return self.ids[self.sent - 1]


def test_entries_behind_a_refused_one_are_not_counted_among_those_before_it() -> None:
    """With --skip the load is to go on at the first that was refused."""
    full: Any = PartlyRefusing()
    sink = ServerSink(full)
    for number in range(1, 11):
        sink.add(b"s", b"%d-1" % number, [b"f", b"v"], number)
    with pytest.raises(Failure) as failure:
        sink.finish()
    assert str(failure.value) == (
        "line 3: full:6379 refuses it: OOM command not allowed; 2 entries of those up to line 10 are not loaded, "
        "nor any line behind it, but 6 entries between these"
    )
    assert sink.loaded == 2


def test_a_server_that_tells_nothing_of_itself_is_loaded_into(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.ask("ACL", "SETUSER", "writer", "on", ">secret", "~*", "+@all", "-info", "-command")
    assert load(f"redis://writer:secret@localhost:{server.port}", "s", given=LINES)["entries"] == 1000


def test_without_any_input_a_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(Failure, match="name a FILE"):
        main.main(["load", str(tmp_path / "data"), "s"], standalone_mode=False)


def test_an_interrupt_says_how_much_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"fields": {"a": "b"}}\n' * 1000)

    def interrupt(self: ProgressBar, byte_count: int, items: int = 0) -> None:
        self.done_items += items
        if self.done_items == 700:
            raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBar, "advance", interrupt)
    result = run("load", tmp_path / "data", "k", lines)
    assert result.exit_code == 130
    assert "interrupted: at least 512 entries of it are loaded" in " ".join(result.stderr.split())


def test_a_disk_that_fails_in_the_midst_is_told_with_what_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, errors = DirectorySink.add, iter([OSError(28, "No space left on device"), lmdb.DiskError("mdb_put: No space")])

    def fails(sink: DirectorySink, key: bytes, entry_id: Any, words: Any, number: int) -> None:
        if number == 600:
            sink.finish()
            raise next(errors)
        add(sink, key, entry_id, words, number)

    monkeypatch.setattr(DirectorySink, "add", fails)
    for key, reason in (("s", "No space left on device"), ("t", "LMDB says mdb_put: No space")):
        told = refused(tmp_path / "store", key, given=LINES)
        assert "cannot load more than 599 entries, and some that may be behind them: " in told and reason in told
        assert len(dumped(tmp_path / "store", key)) == 599


@pytest.mark.parametrize(("form", "head"), [("csv", "n\n"), ("csv", ""), ("jsonl", "")])
def test_a_line_that_is_too_long_is_no_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, head: str
) -> None:
    monkeypatch.setattr(load_module, "_MAX_LINE_BYTES", 100)
    told = refused(tmp_path / "store", "s", "--format", form, given=head + "x" * 150 + "\n")
    assert f"line {1 + bool(head)}: it is longer than 0 MB; nothing is loaded" in told
    (tmp_path / "rows").write_text("n\n" + "y" * 99 + "\n")
    assert load(tmp_path / "store", "s", tmp_path / "rows", "--format", "csv")["entries"] == 1


def test_a_store_whose_load_was_killed_is_not_said_to_be_empty(tmp_path: Path) -> None:
    with contextlib.closing(DirectorySink(tmp_path)) as sink:
        for number in range(1, 1000):
            sink.add(b"s", None, [b"n", b"%d" % number])
    result = run("stat", tmp_path)
    assert result.exit_code == 2
    assert "start riverbed-server on it once, which reads its log" in " ".join(result.stderr.split())
