from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from riverbed.tools.console.console import age_text
from riverbed.tools.console.keytext import key_text, key_values
from tests.support import program
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer, Server
from tests.support.terminal import on_terminal

StartRiverbed = Callable[..., RiverbedServer]
StartRedis = Callable[..., RedisServer]


run = partial(program.run, "stat")
told = partial(program.printed, "stat", "--json")


def fill(server: Server) -> None:
    with server.client() as client:
        client.pipeline([("XADD", "long", f"{number}-0", "field", "value") for number in range(1, 301)])
        client.pipeline([("XADD", "short", f"{number}-0", "field", "value") for number in range(1, 4)])
        client.ask("XADD", b"\xff\x00", "1-1", "f", "v")
        client.ask("XGROUP", "CREATE", "long", "readers", "0")
        client.ask("XGROUP", "CREATE", "long", "idlers", "$")
        client.ask("XREADGROUP", "GROUP", "readers", "alice", "COUNT", "50", "STREAMS", "long", ">")
        client.ask("XREADGROUP", "GROUP", "readers", "bob", "COUNT", "50", "STREAMS", "long", ">")
        client.ask("XACK", "long", "readers", "1-0", "2-0")


def expected_groups(found: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (group["name"], group["consumers"], group["pending"], group["lag"], group["last_delivered_id"])
        for group in found["groups"]
    ]


EXPECTED = [("idlers", 0, 0, 0, "300-0"), ("readers", 2, 98, 200, "100-0")]


def check_what_is_told(found: list[dict[str, Any]]) -> None:
    assert [(each.get("key"), each["length"]) for each in found] == [("long", 300), ("short", 3), (None, 1)]
    assert found[2]["key_base64"] == "/wA="
    assert expected_groups(found[0]) == EXPECTED
    assert (found[0]["pending"], found[0]["lag"]) == (98, 200)
    assert 0 <= found[0]["oldest_pending_ms"] < 600_000
    assert (found[1]["groups"], found[1]["lag"], found[1]["oldest_pending_ms"]) == ([], None, None)
    assert all(each["bytes"] > 0 for each in found)


def test_a_stopped_store_is_told(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    riverbed.stop()
    check_what_is_told(told(riverbed.directory))


def test_a_running_store_is_told_from_its_files(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("SAVE")
    check_what_is_told(told(riverbed.directory))


def test_a_snapshot_is_told_as_of_its_moment(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("RIVERBED", "SNAPSHOT", "monday")
        client.ask("DEL", "long")
    found = told(riverbed.directory / "snapshots" / "monday")
    check_what_is_told(found)
    assert told(riverbed.directory / "snapshots" / "monday")[0]["oldest_pending_ms"] == found[0]["oldest_pending_ms"]


def test_a_server_is_told_the_same_as_its_files(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    check_what_is_told(told(f"localhost:{riverbed.port}"))
    check_what_is_told(told(f"redis://127.0.0.1:{riverbed.port}"))


def test_a_real_redis_is_told_alike(start_redis: StartRedis) -> None:
    server = start_redis()
    fill(server)
    check_what_is_told(told(f"localhost:{server.port}"))


@pytest.mark.parametrize("how", ["files", "server"])
def test_an_entry_without_an_owner_has_no_age(riverbed: RiverbedServer, how: str) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("XADD", "other", "1-1", "f", "v")
        client.ask("XGROUP", "CREATE", "other", "g", "0")
        client.ask("XREADGROUP", "GROUP", "g", "alice", "STREAMS", "other", ">")
        client.ask("XNACK", "other", "g", "SILENT", "IDS", "1", "1-1")
        client.ask("XNACK", "long", "readers", "SILENT", "IDS", "1", "3-0")
        client.ask("SAVE")
    target = riverbed.directory if how == "files" else f"localhost:{riverbed.port}"
    found = {each.get("key"): each for each in told(target)}
    assert found["other"]["oldest_pending_ms"] is None
    assert found["long"]["oldest_pending_ms"] >= 0


HOURS = 3_600_000


def make_stuck(server: Server) -> None:
    """300 entries just delivered; ten of them, behind the first hundred, 48 hours ago, and one 13 times."""
    fill(server)
    with server.client() as client:
        client.ask("XREADGROUP", "GROUP", "readers", "alice", "COUNT", "200", "STREAMS", "long", ">")
        stuck = [f"{number}-0" for number in range(250, 260)]
        client.ask("XCLAIM", "long", "readers", "bob", "0", *stuck, "IDLE", str(48 * HOURS), "RETRYCOUNT", "13")


@pytest.mark.parametrize("how", ["files", "server"])
def test_stuck_entries_behind_newer_ones_are_shown(riverbed: RiverbedServer, how: str) -> None:
    make_stuck(riverbed)
    with riverbed.client() as client:
        client.ask("SAVE")
    target = riverbed.directory if how == "files" else f"localhost:{riverbed.port}"
    found = told(target)[0]
    assert 48 * HOURS <= found["oldest_pending_ms"] < 49 * HOURS
    assert found["most_deliveries"] == 13
    by_name = {group["name"]: group for group in found["groups"]}
    assert by_name["readers"]["oldest_pending_ms"] == found["oldest_pending_ms"]
    assert (by_name["idlers"]["oldest_pending_ms"], by_name["idlers"]["most_deliveries"]) == (None, 0)
    lines = run(target, "--groups").stdout.splitlines()
    assert lines[2].split()[3:] == ["298", "2.0", "d", "13", "0"]


def test_redis_is_asked_for_the_first_hundred_pending_entries_alone(start_redis: StartRedis) -> None:
    server = start_redis()
    make_stuck(server)
    found = told(f"localhost:{server.port}")[0]
    assert found["oldest_pending_ms"] < 600_000
    assert found["most_deliveries"] == 1
    with server.client() as client:
        client.ask("XACK", "long", "readers", *[f"{number}-0" for number in range(1, 250)])
    found = told(f"localhost:{server.port}")[0]
    assert 48 * HOURS <= found["oldest_pending_ms"] < 49 * HOURS
    assert found["most_deliveries"] == 13


def test_a_group_of_unknown_lag_does_not_hide_that_of_others(riverbed: RiverbedServer, start_redis: StartRedis) -> None:
    """Redis does not know how far the group is behind that began in the middle; Riverbed counts it when asked."""
    redis = start_redis()
    for server in (redis, riverbed):
        fill(server)
        with server.client() as client:
            client.pipeline([("XADD", "behind", f"{number}-0", "f", "v") for number in range(1, 1001)])
            client.ask("XGROUP", "CREATE", "behind", "all", "0")
            client.ask("XGROUP", "CREATE", "behind", "later", "500-0")
    for target, lags in (
        (f"localhost:{redis.port}", [1000, None]),
        (f"localhost:{riverbed.port}", [1000, 500]),
        (riverbed.directory, [1000, 500]),
    ):
        if target == riverbed.directory:
            riverbed.stop()
        found = told(target, "--groups", "--sort", "lag")
        assert [each["key"] for each in found] == ["behind", "long"]
        assert [group["lag"] for group in found[0]["groups"]] == lags


def test_all_databases_are_told_or_the_one_asked_for(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        for db in (0, 3):
            client.ask("SELECT", db)
            client.ask("XADD", f"in-{db}", "1-1", "f", "v")
        client.ask("SAVE")
    for target in (riverbed.directory, f"localhost:{riverbed.port}"):
        assert [(each["db"], each["key"]) for each in told(target)] == [(0, "in-0"), (3, "in-3")]
    assert [each["key"] for each in told(f"redis://localhost:{riverbed.port}/3")] == ["in-3"]
    lines = run(riverbed.directory).stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["db", "stream"], ["0", "in-0"], ["3", "in-3"]]


def test_the_table_is_aligned_and_sorted_as_asked(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    riverbed.stop()
    lines = run(riverbed.directory).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["stream", "long", "short", "\\xff\\x00"]
    assert lines[1].split()[-1] == "200"
    assert {line[: lines[0].index("length") + 6][-3:].strip() for line in lines[1:]} == {"300", "3", "1"}
    assert [each.get("key") for each in told(riverbed.directory, "--sort", "key")] == ["long", "short", None]
    assert [each.get("key") for each in told(riverbed.directory, "--sort", "pending", "--limit", 1)] == ["long"]


def test_names_are_cut_on_a_terminal_and_numbers_never(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("XADD", "n" * 200, "1-1", "f", "v")
        client.ask("XGROUP", "CREATE", "long", "g" * 100, "0")
    riverbed.stop()
    for options in ([], ["--groups"]):
        status, screen = on_terminal("stat", riverbed.directory, *options)
        lines = [line.rstrip() for line in screen.splitlines()]
        table = lines[next(number for number, line in enumerate(lines) if "pending" in line) : -1]
        assert status == 0
        assert max(map(len, table)) <= 80
        assert "\u2026" in screen
        assert {len(line) for line in table} == {len(table[0])}, "numbers stand under each other, to the last"
    assert "n" * 200 in run(riverbed.directory).stdout


def test_groups_have_a_line_each(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    riverbed.stop()
    lines = [line.split() for line in run(riverbed.directory, "--groups").stdout.splitlines()]
    assert [line[:4] for line in lines[1:]] == [["long", "idlers", "0", "0"], ["long", "readers", "2", "98"]]


def test_only_keys_like_the_pattern_are_told(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    riverbed.stop()
    assert [each["key"] for each in told(riverbed.directory, "--match", "*o*t")] == ["short"]
    result = run(riverbed.directory, "--match", "none*")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"no stream like none* in {riverbed.directory}" in " ".join(result.stderr.split())


def test_a_pattern_may_be_any_bytes(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.ask("XADD", b"\xffs", "*", "f", "v")
        client.ask("XADD", b"t", "*", "f", "v")
    assert [each["key_base64"] for each in told(f"localhost:{riverbed.port}", "--match", "\udcff*")] == ["/3M="]


def test_the_summary_counts_what_is_not_shown(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    riverbed.stop()
    result = run(riverbed.directory, "--limit", 1)
    assert len(result.stdout.splitlines()) == 2
    assert "3 streams, of which 1 are shown: 304 entries" in result.stderr


def test_an_empty_store_has_no_stream(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.ask("SAVE")
    for target in (riverbed.directory, f"localhost:{riverbed.port}"):
        result = run(target)
        assert (result.exit_code, result.stdout) == (0, "")
        assert "no stream in" in result.stderr


def test_what_cannot_be_looked_at_is_said_with_status_2(tmp_path: Path, start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "secret"})
    port = server.port
    (tmp_path / "half" / "appendonlydir").mkdir(parents=True)
    for target, words in (
        (tmp_path / "none", "none: name a data directory, a snapshot, or a server as HOST:PORT"),
        ("localhost", "there is no localhost: name a data directory, a snapshot, or a server as HOST:PORT"),
        (tmp_path / "logs", "not a snapshot"),
        (server.log_path, "is a file"),
        (tmp_path / "half", "has a log and no tables"),
        ("localhost:1", "localhost:1 cannot be reached"),
        ("localhost:99999", "the port is not a number"),
        ("a..b:6379", "a..b:6379 cannot be reached: 'a..b' is not the name of a host"),
        (f"redis://{'h' * 64}", "is not the name of a host"),
        ("redis://", "no host is named"),
        (f"localhost:{port}", "does not let us in"),
    ):
        result = run(target)
        assert (result.exit_code, result.stdout) == (2, ""), target
        assert words in " ".join(result.stderr.split())
    server.kill()


@pytest.mark.parametrize("right", ["-xinfo", "-xinfo|groups", "-xpending", "resetkeys ~other"])
def test_what_a_user_may_not_see_is_not_told_as_gone(riverbed: RiverbedServer, right: str) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("ACL", "SETUSER", "watcher", "on", ">secret", "~*", "+@all", *right.split())
    result = run(f"redis://watcher:secret@localhost:{riverbed.port}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "refuses: NOPERM" in result.stderr


def test_sizes_that_a_user_may_not_see_are_left_out(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("ACL", "SETUSER", "watcher", "on", ">secret", "~*", "+@all", "-memory", "-riverbed")
    found = told(f"redis://watcher:secret@localhost:{riverbed.port}")
    assert found
    assert {each["bytes"] for each in found} == {None}


def test_a_password_lets_us_in(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "secret"})
    with RawClient(server.port) as client:
        client.ask("AUTH", "secret")
        client.ask("XADD", "s", "1-1", "f", "v")
    assert [each["key"] for each in told(f"redis://:secret@localhost:{server.port}")] == ["s"]
    server.kill()


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.0 s"),
        (400, "0.4 s"),
        (12_000, "12 s"),
        (59_400, "59 s"),
        (59_600, "1.0 min"),
        (210_000, "3.5 min"),
        (3_600_000, "1.0 h"),
        (47 * 3_600_000, "47 h"),
        (72 * 3_600_000, "3.0 d"),
        (10**12, "11,574 d"),
    ],
)
def test_ages_are_short(ms: int, text: str) -> None:
    assert age_text(ms) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("schön".encode(), "schön"),
        (b"a\nb", "a\\nb"),
        (b"\xff", "\\xff"),
        (b"a\\b", "a\\\\b"),
        ("\u202e".encode(), "\\xe2\\x80\\xae"),
        (b"", ""),
    ],
)
def test_any_bytes_are_shown_on_one_line(data: bytes, text: str) -> None:
    assert key_text(data) == text


def test_bytes_that_are_no_text_are_base64_in_json() -> None:
    assert key_values("key", b"\xff") == {"key_base64": "/w=="}
    assert key_values("key", b"k") == {"key": "k"}
