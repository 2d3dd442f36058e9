from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import StartRiverbed
from tests.support import program
from tests.support.raw import RawClient
from tests.support.terminal import on_terminal

pytestmark = pytest.mark.slow


run = partial(program.run, "compact")
told = partial(program.report, "compact")


def looks(client: RawClient) -> list[bytes]:
    """Everything of the stream and its group, pending entries with their times included."""
    return client.pipeline(
        [
            ("XINFO", "STREAM", "s", "FULL", "COUNT", 0),
            ("XPENDING", "s", "g"),
            ("XINFO", "GROUPS", "s"),
        ]
    )


@pytest.fixture
def directory(start_riverbed: StartRiverbed) -> Path:
    """A stopped store: a stream most of which was deleted, with pending entries."""
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "field", "value") for number in range(1, 2001)])
        client.pipeline([("XGROUP", "CREATE", "s", "g", "0"), ("XGROUP", "CREATECONSUMER", "s", "g", "Bob")])
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 500, "STREAMS", "s", ">")
        client.ask("XDEL", "s", *(f"{number}-0" for number in range(1, 2001) if number % 10))
    server.stop()
    return server.directory


def test_the_end_of_the_input_is_no_consent(directory: Path) -> None:
    before = (directory / "state" / "data.mdb").stat()
    status, screen = on_terminal("compact", directory, typed=b"\x04")
    assert status == 2
    assert "not compacted" in screen
    assert (directory / "state" / "data.mdb").stat().st_ino == before.st_ino


def test_a_compacted_store_looks_the_same_to_clients(directory: Path, start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(shutil.copytree(directory, directory.with_name("before")))
    with server.client() as client:
        before = looks(client)
    report = told(directory)
    assert report["done"] and not report["full_sync"]
    assert report["tables"]["entries"]["after"]["rows"] == 200
    assert report["log"]["after"]["bytes"] < report["log"]["before"]["bytes"]
    server = start_riverbed(directory)
    with server.client() as client:
        assert looks(client) == before


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(directory: Path) -> None:
    before = (directory / "state" / "data.mdb").read_bytes()
    report = told(directory, "--dry-run", "--maxlen", 50)
    assert (report["done"], report["trimmed_entries"], report["trimmed_streams"]) == (False, 150, 1)
    result = run(directory, "--dry-run", "--maxlen", 50)
    assert "nothing was changed" in result.stdout
    assert "150 entries of 1 stream" in result.stdout
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80
    assert (directory / "state" / "data.mdb").read_bytes() == before
    assert told(directory, "--maxlen", 50, "--yes")["trimmed_entries"] == 150
    assert told(directory, "--maxlen", 50, "--yes")["trimmed_entries"] == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_without_a_terminal_entries_are_dropped_only_with_yes(directory: Path, form: list[str]) -> None:
    before = (directory / "state" / "data.mdb").read_bytes()
    result = run(directory, "--maxlen", 50, *form)
    assert (result.exit_code, result.stdout) == (2, "")
    reason = "about 150 entries would be dropped: add --yes, or look with --dry-run; not compacted"
    assert reason in " ".join(result.stderr.split())
    assert (directory / "state" / "data.mdb").read_bytes() == before


def test_the_report_is_legible(directory: Path) -> None:
    result = run(directory, "--older-than", "1d", "--key", "other*", "--yes")
    assert result.stdout.startswith(f"compacted {directory} in ")
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80
    assert "0 entries of 0 streams" in result.stdout


def test_a_running_store_is_refused(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    result = run(server.directory)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "stop its server first" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{tmp}/none"], "is not a directory"),
        (["{tmp}"], "holds no store"),
        (["{dir}", "--older-than", "7"], "'7' is not a time such as 90s"),
        (["{dir}", "--key", "x*"], "add --older-than"),
        (["{dir}", "--maxlen", "-1"], "not in the range"),
    ],
)
def test_what_cannot_be_done_is_said_with_status_2(
    directory: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    result = run(
        *(word.replace("{tmp}", str(tmp_path / "empty")).replace("{dir}", str(directory)) for word in arguments)
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize(("answer", "is_done"), [(b"y\n", True), (b"\n", False), (b"no\n", False)])
def test_who_sits_at_a_terminal_is_asked(directory: Path, answer: bytes, is_done: bool) -> None:
    before = (directory / "state" / "data.mdb").stat().st_ino
    status, screen = on_terminal("compact", directory, typed=answer)
    assert "will be compacted" in screen
    assert "Compact, and delete no entry? [y/N]" in screen
    assert status == (0 if is_done else 2)
    assert ("not compacted" not in screen) == is_done
    assert ((directory / "state" / "data.mdb").stat().st_ino != before) == is_done


def test_the_question_says_what_is_deleted(directory: Path) -> None:
    status, screen = on_terminal("compact", directory, "--maxlen", 50, typed=b"\n")
    assert status == 2
    assert "Delete about 150 entries for good, and compact? [y/N]" in screen


def test_who_has_said_yes_is_not_asked(directory: Path) -> None:
    status, screen = on_terminal("compact", directory, "--yes")
    assert (status, "[y/N]" in screen) == (0, False)
    assert "compacted" in screen
