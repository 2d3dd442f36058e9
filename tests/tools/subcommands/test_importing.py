"""What is imported shows the same to every question, and what goes wrong is told in one line."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from riverbed.store.ids import StreamID
from riverbed.tools.console.console import Failure
from riverbed.tools.live import livestream
from riverbed.tools.live.redisclient import Address, ReplyError, parse_url
from riverbed.tools.live.target import server_address
from riverbed.tools.live.tls import TlsOptions
from riverbed.tools.loading.sinks import ServerSink
from tests.conftest import StartRedis, StartRiverbed, base_seed, broken_invariants
from tests.support import program
from tests.support.impostor import impostor
from tests.support.in_process import value_of
from tests.support.raw import RawClient, parse
from tests.support.scripts.generators import KEYSPACE, STREAMS, Generator
from tests.support.scripts.group_commands import GROUP_FAMILY, NEWER_FAMILY, LastingCommands
from tests.support.servers import Server

pytestmark = pytest.mark.slow


class AnyGenerator(LastingCommands, Generator):
    """Streams, groups and keys."""


run = partial(program.run, "import")
imported = partial(program.report, "import")


def url(server: Server, database: str = "") -> str:
    return f"redis://127.0.0.1:{server.port}{database}"


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.stdout
    assert result.stderr.count("\n") == 1
    return result.stderr


# Told by one of the two servers only, or of how the data lies in memory; and the lag, which 8 derives otherwise than 7.
_OWN = frozenset((b"lag", b"radix-tree-keys", b"radix-tree-nodes", b"idmp-duration", b"idmp-maxsize", b"pids-tracked",
                  b"iids-tracked", b"iids-added", b"iids-duplicates", b"nacked-count", b"active-time"))  # fmt: skip


def comparable(value: Any, own: frozenset[bytes] = _OWN) -> Any:
    """A reply of XINFO with maps as maps, without `own`."""
    if isinstance(value, list):
        if value and value[0] in (b"length", b"name"):
            pairs = zip(value[::2], value[1::2], strict=True)
            return {name: comparable(content, own) for name, content in pairs if name not in own}
        return [comparable(part, own) for part in value]
    return value


def shown_by(server: Server, own: frozenset[bytes] = _OWN, databases: int = 16) -> dict[tuple[int, bytes], Any]:
    """XINFO STREAM FULL, XPENDING of every group and the deadline of every stream."""
    state = {}
    with server.client() as client:

        def ask(*words: object) -> Any:
            return value_of(parse(client.ask(*words)))

        for database in range(databases):
            ask("SELECT", database)
            for key in ask("KEYS", "*"):
                if ask("TYPE", key) == "stream":
                    full = comparable(ask("XINFO", "STREAM", key, "FULL", "COUNT", 0), own)
                    pending = [ask("XPENDING", key, group[b"name"]) for group in full[b"groups"]]
                    state[database, key] = full, pending, ask("PEXPIRETIME", key)
    return state


def fill(server: Server, seed: int, *families: Any) -> None:
    generator = AnyGenerator(random.Random(seed), (STREAMS, KEYSPACE, *families), wrong=0.02)
    with server.client() as client:
        for number in range(700):
            client.ask(*generator.command())
            if number % 50 == 0:
                client.ask("SELECT", number // 50 % 3)


@pytest.mark.parametrize("number", range(3))
def test_a_redis_is_imported_field_by_field(
    start_redis: StartRedis, start_riverbed: StartRiverbed, tmp_path: Path, number: int
) -> None:
    redis = start_redis()
    fill(redis, base_seed() + number, GROUP_FAMILY)
    expected = shown_by(redis)
    with redis.client() as client:
        client.ask("SELECT", 1)
        client.pipeline([("SET", f"string:{n}", n) for n in range(7)])
        client.ask("HSET", "hash", "f", "v")
    report = imported(url(redis), tmp_path / "new", status=1)
    assert report["left"] == {"string": 7, "hash": 1}
    assert report["left_keys"]["hash"] == ["1:hash"]
    assert (report["streams"], report["moved"]) == (len(expected), [])
    ours = start_riverbed(tmp_path / "new")
    assert shown_by(ours) == expected
    ours.restart()
    assert shown_by(ours) == expected


def test_for_how_long_records_count_is_copied_where_the_target_knows_that(
    start_redis: StartRedis, start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    source = start_riverbed()
    with source.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("XCFGSET", "s", "IDMP-DURATION", 86_400, "IDMP-MAXSIZE", 10_000)
    target, redis = start_riverbed(), start_redis()
    imported(url(source), tmp_path / "new")
    imported(url(source), url(target))
    for server in (start_riverbed(tmp_path / "new"), target):
        with server.client() as client:
            found = client.ask("XINFO", "STREAM", "s")
            assert b"idmp-duration\r\n:86400\r\n" in found and b"idmp-maxsize\r\n:10000\r\n" in found
    assert imported(url(source), url(redis), status=1)["unmarked"] == ["s"]
    with target.client() as client:
        client.ask("FLUSHALL")
        client.ask("ACL", "SETUSER", "writer", "on", ">secret", "~*", "+@all", "-xcfgset")
        report = imported(url(source), f"redis://writer:secret@127.0.0.1:{target.port}", status=1)
        assert (report["streams"], report["unmarked"]) == (1, ["s"])


def test_records_that_no_command_shows_are_missed_by_name(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    source = start_riverbed()
    with source.client() as client:
        client.ask("XADD", "s", "IDMP", "pid", "iid", "*", "f", "v")
        client.ask("XADD", "plain", "*", "f", "v")
    result = run(url(source), tmp_path / "new")
    assert result.exit_code == 1
    assert "without its producers' idempotence records, which no command shows: s\n" in result.stdout
    assert "plain" not in result.stdout


@pytest.mark.parametrize("number", range(2))
def test_a_riverbed_is_imported_field_by_field(start_riverbed: StartRiverbed, tmp_path: Path, number: int) -> None:
    source = start_riverbed()
    fill(source, base_seed() + 10 + number, GROUP_FAMILY, NEWER_FAMILY)
    own = frozenset(name for name in _OWN if name not in (b"nacked-count", b"active-time", b"lag"))
    expected = shown_by(source, own)
    result = run(url(source), tmp_path / "new", "--json")
    report = json.loads(result.stdout)
    assert report["left"] == {}
    assert result.exit_code == bool(report["unmarked"])
    target = start_riverbed(tmp_path / "new")
    assert shown_by(target, own) == expected


def test_running_servers_take_an_import(start_redis: StartRedis, start_riverbed: StartRiverbed) -> None:
    redis, ours, other = start_redis(), start_riverbed(), start_redis()
    fill(redis, base_seed() + 20, GROUP_FAMILY)
    times = _OWN | {b"seen-time"}  # these cannot be told to a server
    expected = shown_by(redis, times)
    assert imported(url(redis), url(ours))["streams"] == len(expected)
    assert shown_by(ours, times) == expected
    report = imported(url(redis), url(ours), status=1)
    assert (report["streams"], len(report["existing"])) == (0, len(expected))
    assert shown_by(ours, times) == expected
    imported(url(ours), url(other))
    assert shown_by(other, times) == expected


def test_a_running_riverbed_is_told_when_consumers_were_seen(
    start_redis: StartRedis, start_riverbed: StartRiverbed
) -> None:
    redis, first, second = start_redis(), start_riverbed(), start_riverbed()
    with redis.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        client.ask("XGROUP", "CREATECONSUMER", "s", "g", "idle")
        client.ask("XREADGROUP", "GROUP", "g", "busy", "STREAMS", "s", ">")
    imported(url(redis), url(first))
    expected = shown_by(first)
    assert seen_times(first) == seen_times(redis) != []
    imported(url(first), url(second))
    assert shown_by(second) == expected
    second.restart()
    assert shown_by(second) == expected


def test_no_group_is_said_to_have_read_more_than_was_added_by_then(start_redis: StartRedis) -> None:
    """Redis 8 takes such a number for as many as were added."""
    source, target = start_redis(), start_redis()
    with source.client() as client, target.client() as monitor:
        client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 6)])
        client.ask("XSETID", "s", "9-0", "ENTRIESADDED", 1047, "MAXDELETEDID", "7-0")
        client.ask("XGROUP", "CREATE", "s", "ahead", "5-0", "ENTRIESREAD", 1047)
        client.ask("XGROUP", "CREATE", "s", "behind", "2-0", "ENTRIESREAD", 2)
        client.ask("XSETID", "s", "9-0", "ENTRIESADDED", 1008, "MAXDELETEDID", "7-0")
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        imported(url(source), url(target))
        assert shown_by(target) == shown_by(source)
        target.stop()
        lines = monitor.rest_until_closed().decode().split("\r\n")
    added = 0
    told = {}
    for words in (line.replace('"', "").split() for line in lines):
        if "ENTRIESADDED" in words:
            added = int(words[words.index("ENTRIESADDED") + 1])
        elif "ENTRIESREAD" in words:
            read = int(words[words.index("ENTRIESREAD") + 1])
            told[words[words.index("SETID") + 2]] = min(read, added)
    assert told == {"ahead": 1047, "behind": 2}
    assert added == 1008


def seen_times(server: Server) -> list[bytes]:
    with server.client() as client:
        return re.findall(rb"seen-time\r\n:(\d+)", client.ask("XINFO", "STREAM", "s", "FULL"))


@pytest.mark.parametrize("place", ["0", "2-1"])
def test_a_group_that_was_set_back_stays_there(
    start_redis: StartRedis, start_riverbed: StartRiverbed, tmp_path: Path, place: str
) -> None:
    source, running = start_redis(), start_riverbed()
    with source.client() as client:
        client.pipeline([("XADD", "s", f"{number}-1", "f", "v") for number in range(1, 6)])
        client.ask("XGROUP", "CREATE", "s", "g", 0)
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
        client.ask("XACK", "s", "g", "1-1", "2-1", "3-1", "4-1")
        client.ask("XGROUP", "SETID", "s", "g", place)
    imported(url(source), url(running))
    imported(url(source), tmp_path / "new")
    for target in (running, start_riverbed(tmp_path / "new")):
        assert shown_by(target) == shown_by(source)


def test_policies_of_groups_come_along(start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path) -> None:
    source, running, redis = start_riverbed(), start_riverbed(), start_redis()
    with source.client() as client:
        client.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        client.ask("XGROUP", "CREATE", "s", "plain", "0")
        client.ask("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 5, "DEADLETTER", "dead", "CONSUMERTTL", 3_600_000)
        expected = [client.ask("XGROUP", "POLICY", "s", group) for group in ("g", "plain")]
    imported(url(source), tmp_path / "new")
    imported(url(source), url(running))
    imported(url(source), url(redis))
    for server in (start_riverbed(tmp_path / "new"), running):
        with server.client() as client:
            assert [client.ask("XGROUP", "POLICY", "s", group) for group in ("g", "plain")] == expected


class OldRedis:
    """Answers as Redis 5 does, which tells less."""

    address = "old:6379"
    is_riverbed = False

    def call(self, *words: object) -> Any:
        if "FULL" in words:
            raise ReplyError("ERR Unknown XINFO subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP.")
        if words[:2] == ("XINFO", "STREAM"):
            return [b"length", 2, b"radix-tree-keys", 1, b"last-generated-id", b"5-0", b"groups", 1,
                    b"first-entry", None, b"last-entry", None]  # fmt: skip
        if words[:2] == ("XINFO", "GROUPS"):
            return [[b"name", b"g", b"consumers", 1, b"pending", 1, b"last-delivered-id", b"4-0"]]
        assert words[0] == "PEXPIRETIME"
        raise ReplyError("ERR unknown command `PEXPIRETIME`, with args beginning with: `s`, ")

    def call_all(self, commands: list[tuple[object, ...]]) -> list[Any]:
        assert commands[0] == ("TIME",)
        if commands[1][0] == "PTTL":
            return [[b"1700000000", b"500000"], 1_000]
        return [[b"1700000000", b"500000"], [[b"name", b"c", b"pending", 1, b"idle", 500]]]


def test_what_old_servers_do_not_tell_is_taken_as_newer_ones_take_it() -> None:
    old: Any = OldRedis()
    consumer = livestream.LiveConsumer(b"c", 1_700_000_000_000, 1_700_000_000_000, 1)
    group = livestream.LiveGroup(b"g", StreamID(4 << 64), None, 1, (consumer,))
    found = livestream.describe(old, b"s")
    assert found == livestream.LiveStream(
        2, StreamID(5 << 64), StreamID(0), 2, (group,), False, livestream.DEFAULT_IDEMPOTENCE
    )
    assert found.groups[0].consumers[0].seen_ms == 1_700_000_000_000
    assert livestream.deadline_ms(old, b"s") == 1_700_000_001_500


def test_pages_and_what_was_deleted_while_pending(
    start_redis: StartRedis, start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    redis = start_redis()
    with redis.client() as client:
        client.pipeline([("XADD", "s", f"{n}-1", "f", "v" * (n % 50)) for n in range(1, 12_001)])
        client.ask("XADD", "large", "1-1", "f", "v" * 3_000_000)
        client.ask("XADD", "large", "2-1", "f", "v" * 3_000_000)
        for group, consumers in (("g", 3), ("h", 1)):
            client.ask("XGROUP", "CREATE", "s", group, "0")
            for turn in range(30):
                client.ask("XREADGROUP", "GROUP", group, f"c{turn % consumers}", "COUNT", 100, "STREAMS", "s", ">")
        client.ask("XDEL", "s", *(f"{n}-1" for n in range(1, 3_000, 3)))
        client.ask("XACK", "s", "h", *(f"{n}-1" for n in range(1, 2_000)))
        client.ask("XTRIM", "s", "MAXLEN", 11_000)
        client.ask("XADD", "gone", "5-5", "f", "v")
        client.ask("XGROUP", "CREATE", "gone", "g", "0")
        client.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "gone", ">")
        client.ask("XDEL", "gone", "5-5")
        client.ask("XGROUP", "CREATE", "never", "g", "$", "MKSTREAM")
        client.ask("PEXPIREAT", "never", 4_102_444_800_123)
    expected = shown_by(redis)
    report = imported(url(redis), tmp_path / "new")
    assert report["moved"] == []
    assert shown_by(start_riverbed(tmp_path / "new")) == expected


def test_one_database_of_several(start_redis: StartRedis, start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    redis = start_redis(options={"databases": 40})
    with redis.client() as client:
        for database in (0, 7, 30):
            client.ask("SELECT", database)
            client.ask("XADD", f"in{database}", "1-1", "f", "v")
    assert "there is no database 30 here; there are 16" in refused(url(redis), tmp_path / "new")
    assert imported(url(redis, "/7"), tmp_path / "new")["streams"] == 1
    assert list(shown_by(start_riverbed(tmp_path / "new"))) == [(7, b"in7")]
    assert "DB index is out of range" in refused(url(redis, "/99"), tmp_path / "other")


@contextlib.contextmanager
def kept_busy(server: Server, *commands: tuple[object, ...]) -> Iterator[None]:
    """Send `commands` in turn, again and again, and at any rate whenever the entries of a stream are to be read."""
    read_entries = livestream.read_entries
    stop = threading.Event()

    def work() -> None:
        with server.client() as client:
            while not stop.is_set():
                client.pipeline(commands)

    def forestalled(*arguments: Any) -> Iterator[Any]:
        with server.client() as client:
            client.pipeline(commands)
        return read_entries(*arguments)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("riverbed.tools.loading.copystream.read_entries", forestalled)
            yield
    finally:
        stop.set()
        worker.join()


def test_a_growing_stream_is_copied_as_it_was(start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis()
    with redis.client() as client:
        client.pipeline([("XADD", "s", "*", "f", n) for n in range(20_000)])
    with kept_busy(redis, ("XADD", "s", "*", "f", "v")):
        report = imported(url(redis), tmp_path / "new")
    assert report["entries"] >= 20_000
    assert broken_invariants(tmp_path / "new") == []


def test_a_stream_that_keeps_changing_is_named(start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis()
    with redis.client() as client:
        client.pipeline([("XADD", "s", "*", "f", n) for n in range(20_000)])
        client.ask("XGROUP", "CREATE", "s", "g", "0")
    work = [
        ("XADD", "s", "MAXLEN", 20_000, "*", "f", "v"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "s", ">"),
        ("XTRIM", "s", "MAXLEN", 19_000),
    ]
    with kept_busy(redis, *work):
        report = imported(url(redis), tmp_path / "new", status=1)
    assert report["moved"] == ["s"]
    assert broken_invariants(tmp_path / "new") == []


@pytest.mark.parametrize("to", ["directory", "server"])
def test_what_is_delivered_while_a_group_is_copied_is_not_delivered_again(
    start_redis: StartRedis, start_riverbed: StartRiverbed, tmp_path: Path, to: str
) -> None:
    redis, target = start_redis(), tmp_path / "new"
    with redis.client() as client:
        client.pipeline([("XADD", "s", "*", "f", n) for n in range(100)])
        client.ask("XGROUP", "CREATE", "s", "g", "0")
        client.ask("XGROUP", "CREATE", "s", "idle", "0")
    running = start_riverbed() if to == "server" else None

    def delivered(*arguments: Any) -> Any:
        """As in a busy stream: something is appended and delivered between one look at the group and the next."""
        with redis.client() as client:
            client.ask("XADD", "s", "*", "f", "v")
            client.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "s", ">")
        return livestream.read_pending(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("riverbed.tools.loading.copystream.read_pending", delivered)
        report = imported(url(redis), target if running is None else url(running), status=1)
    assert report["moved"] == ["s"]
    server = start_riverbed(target) if running is None else running
    with server.client() as client:
        pending = [row.children[0].text for row in client.tree("XPENDING", "s", "g", "-", "+", 1000).children or ()]
        assert len(pending) >= 25
        again = client.tree("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">").children[0].children[1]
        assert again.children[0].children[0].text not in pending


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_passwords(start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis(options={"requirepass": "p@ss word/1"})
    with RawClient(redis.port) as client:
        client.ask("AUTH", "p@ss word/1")
        client.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all")
        client.ask("ACL", "SETUSER", "blind", "on", ">secret", "~*", "-@all", "+ping")
        client.ask("XADD", "s", "1-1", "f", "v")
    port = redis.port
    reason = refused(f"redis://127.0.0.1:{port}", tmp_path / "new")
    assert "does not let us in: NOAUTH" in reason
    reason = refused(f"redis://:wrong@127.0.0.1:{port}", tmp_path / "new")
    assert "does not let us in: WRONGPASS" in reason
    assert "wrong@" not in reason
    assert "NOPERM" in refused(f"redis://blind:secret@127.0.0.1:{port}", tmp_path / "new")
    assert imported(f"redis://:p%40ss%20word%2F1@127.0.0.1:{port}", tmp_path / "one")["streams"] == 1
    report = imported(f"redis://reader:secret@127.0.0.1:{port}", tmp_path / "two")
    assert (report["streams"], report["source"]) == (1, f"127.0.0.1:{port}")
    assert not (tmp_path / "new").exists()


STOPPED = "stopped answering: no reply within 1 s"


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    with impostor(b"-ERR unknown command 'AUTH', with args beginning with: 's3cret'\r\n") as port:
        reason = refused(f"redis://:s3cret@127.0.0.1:{port}", tmp_path / "new")
    assert "(redacted)" in reason
    assert "s3cret" not in reason
    for url in (
        "redis://:s3cret@h:x",
        "redis://:s3cret@h/x",
        "redis://:a/s3cret@h",
        "redis://u:1/s3cret@h",
        "redis://:s3cret\u2100@h",
    ):
        with pytest.raises(Failure) as refusal:
            server_address(url)
        assert "s3cret" not in str(refusal.value)
    assert "s3cret" not in repr(parse_url("redis://:s3cret@h"))


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "does not speak Redis's protocol"),
        ([b"+PONG\r\n"], STOPPED),
        ([b"+PONG\r\n", b"$99999999999\r\nxx"], STOPPED),
        ([b"+PONG\r\n", b""], "closed the connection"),
        ([b"-LOADING Redis is loading the dataset in memory\r\n"], "LOADING Redis is loading"),
        (
            [b"+PONG\r\n", b"$0\r\n\r\n", b"$24\r\n# Keyspace\r\ndb0:keys=1\r\n\r\n", b"+OK\r\n",
             b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\ns\r\n",
             b"+stream\r\n", b"*2\r\n$6\r\nlength\r\n$1\r\nx\r\n"],
            "XINFO of b's' has no known form",
        ),
        ([b"+PONG\r\n", b"$0\r\n\r\n", b"$0\r\n\r\n"], "has no keyspace: if it is a Sentinel, name a server"),
    ],
)  # fmt: skip
def test_servers_that_are_none(tmp_path: Path, answers: list[bytes], reason: str) -> None:
    # short only for those who are to be given up
    timeout_s = 1 if reason == STOPPED else 120
    with impostor(*answers) as port:
        assert reason in refused(f"redis://127.0.0.1:{port}", tmp_path / "new", "--timeout", timeout_s)
    assert not [path for path in tmp_path.iterdir() if ":" in path.name], "a directory was made for the server"


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as holder:  # of a port at which nobody can listen meanwhile
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        assert f"127.0.0.1:{port} cannot be reached: Connection refused" in refused(
            f"redis://127.0.0.1:{port}", tmp_path / "new"
        )
    assert "cannot be reached: " in refused("redis://no.such.host.invalid", tmp_path / "new")


def test_a_server_that_dies_in_between_leaves_nothing_behind(
    start_redis: StartRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = start_redis()
    with redis.client() as client:
        client.pipeline([("XADD", "s", "*", "f", n) for n in range(5_000)])
    read_entries = livestream.read_entries

    def dying(*arguments: Any) -> Iterator[Any]:
        redis.kill()
        return read_entries(*arguments)

    monkeypatch.setattr("riverbed.tools.loading.copystream.read_entries", dying)
    target = tmp_path / "place" / "new"
    assert f"127.0.0.1:{redis.port} " in refused(url(redis), target)
    assert list(target.parent.iterdir()) == []


def test_a_server_has_no_part_of_a_stream_under_its_key(
    start_redis: StartRedis, start_riverbed: StartRiverbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, ours = start_redis(), start_riverbed()
    read_entries = livestream.read_entries

    def killed(*arguments: Any) -> Iterator[Any]:
        yield from islice(read_entries(*arguments), 1_000)
        raise KeyboardInterrupt

    with redis.client() as client, ours.client() as target:
        client.pipeline([("XADD", "s", "*", "f", n) for n in range(2_000)])
        with monkeypatch.context() as patched:
            patched.setattr("riverbed.tools.loading.copystream.read_entries", killed)
            patched.setattr(ServerSink, "drop", lambda self, building: None)  # as after kill -9
            assert run(url(redis), url(ours)).exit_code == 130
        (part,) = value_of(parse(target.ask("KEYS", "*")))
        assert re.fullmatch(rb"s\.partial-[0-9a-f]{8}", part)
        assert imported(url(redis), url(ours))["streams"] == 1
        assert value_of(parse(target.ask("XLEN", "s"))) == 2_000
        assert sorted(value_of(parse(target.ask("KEYS", "*")))) == [b"s", part]


def test_a_stream_that_appears_meanwhile_is_left_alone(
    start_redis: StartRedis, start_riverbed: StartRiverbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, ours = start_redis(), start_riverbed()
    read_entries = livestream.read_entries
    with redis.client() as client, ours.client() as target:
        client.ask("XADD", "s", "1-1", "f", "v")

        def meanwhile(*arguments: Any) -> Iterator[Any]:
            target.ask("XADD", "s", "9-9", "its", "own")
            return read_entries(*arguments)

        monkeypatch.setattr("riverbed.tools.loading.copystream.read_entries", meanwhile)
        report = imported(url(redis), url(ours), status=1)
        assert (report["streams"], report["existing"]) == (0, ["s"])
        assert value_of(parse(target.ask("XRANGE", "s", "-", "+"))) == [[b"9-9", [b"its", b"own"]]]
        assert value_of(parse(target.ask("KEYS", "*"))) == [b"s"]


def test_a_stream_that_expires_meanwhile_is_no_failure(
    start_redis: StartRedis, start_riverbed: StartRiverbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, ours = start_redis(), start_riverbed()
    monkeypatch.setattr("riverbed.tools.loading.copystream.deadline_ms", lambda *arguments: 1)
    with redis.client() as client, ours.client() as target:
        client.ask("XADD", "s", "1-1", "f", "v")
        imported(url(redis), url(ours))
        assert value_of(parse(target.ask("KEYS", "*"))) == []


@pytest.mark.parametrize(
    ("words", "reader", "left"),
    [
        (("DEL", "m"), "read_entries", {b"a", b"z"}),
        (("XGROUP", "DESTROY", "m", "g"), "read_pending", {b"a", b"m", b"z"}),
    ],
    ids=["stream", "group"],
)
@pytest.mark.parametrize("server", ["redis_server", "riverbed"])
def test_what_is_deleted_while_it_is_copied_does_not_end_the_import(
    request: pytest.FixtureRequest,
    start_riverbed: StartRiverbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    words: tuple[str, ...],
    reader: str,
    left: set[bytes],
) -> None:
    """A stream, and a group of one that is so long that it would not be copied again for having changed."""
    source: Server = request.getfixturevalue(server)
    read = getattr(livestream, reader)
    with source.client() as client:
        for key in ("a", "m", "z"):
            client.ask("XADD", key, "1-1", "f", "v")
            client.ask("XGROUP", "CREATE", key, "g", "0")

        def meanwhile(*given: Any) -> Any:
            if given[1] == b"m":
                client.ask(*words)
            return read(*given)

        monkeypatch.setattr("riverbed.tools.loading.copystream._LONG", 1)
        monkeypatch.setattr(f"riverbed.tools.loading.copystream.{reader}", meanwhile)
        report = imported(url(source), tmp_path / "new")
    assert (report["changing"], report["moved"]) == ([], [])
    assert {key for _, key in shown_by(start_riverbed(tmp_path / "new"))} == left


def test_a_stream_whose_groups_are_deleted_each_time_is_named(
    redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_pending = livestream.read_pending
    with redis_server.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.pipeline([("XGROUP", "CREATE", "s", f"g{number}", "0") for number in range(5)])
        client.ask("XADD", "t", "1-1", "f", "v")

        def before(*given: Any) -> Any:
            client.ask("XGROUP", "DESTROY", "s", given[2])
            return read_pending(*given)

        monkeypatch.setattr("riverbed.tools.loading.copystream.read_pending", before)
        report = imported(url(redis_server), tmp_path / "new", status=1)
    assert (report["streams"], report["changing"]) == (1, ["s"])


def test_policies_come_to_a_server_that_does_not_tell_what_it_is(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    source, target = start_riverbed(), start_riverbed()
    with source.client() as client, target.client() as told:
        client.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        client.ask("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 5, "DEADLETTER", "dead")
        told.ask("ACL", "SETUSER", "writer", "on", ">secret", "~*", "+@all", "-info")
        into = f"redis://writer:secret@127.0.0.1:{target.port}"
        assert imported(url(source), into)["streams"] == 1
        assert told.ask("XGROUP", "POLICY", "s", "g") == client.ask("XGROUP", "POLICY", "s", "g")
        told.ask("DEL", "s")
        told.ask("ACL", "SETUSER", "writer", "-command")
        assert imported(url(source), into)["streams"] == 1
        assert told.ask("XGROUP", "POLICY", "s", "g") == client.ask("XGROUP", "POLICY", "s", "g")
        assert run(url(source), tmp_path / "new").exit_code == 0


def test_one_node_of_a_cluster_is_not_all_of_it(start_redis: StartRedis, tmp_path: Path) -> None:
    node = start_redis(options={"cluster-enabled": "yes"})
    assert imported(url(node), tmp_path / "new", status=1)["one_of_cluster"] is True
    told = run(url(node), tmp_path / "other").stdout
    assert f"left: what other nodes have: 127.0.0.1:{node.port} is one of a cluster" in told


def test_a_copy_that_vanishes_is_a_failure(
    start_redis: StartRedis, start_riverbed: StartRiverbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, ours = start_redis(), start_riverbed()
    complete = ServerSink.complete

    def flushed(self: ServerSink, *words: bytes, **how: bool) -> bool:
        self.select(0)
        with ours.client() as other:
            other.ask("FLUSHALL")
        return complete(self, *words, **how)

    monkeypatch.setattr(ServerSink, "complete", flushed)
    with redis.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
    assert f"{ours.port} refused RENAMENX: ERR no such key" in refused(url(redis), url(ours))


def test_servers_are_named_as_for_all_tools(
    start_redis: StartRedis, start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis, ours = start_redis(), start_riverbed()
    with redis.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
    monkeypatch.chdir(tmp_path)
    assert imported(f"127.0.0.1:{redis.port}", f"127.0.0.1:{ours.port}")["streams"] == 1
    with ours.client() as target:
        assert target.ask("XLEN", "s") == b":1\r\n"
    assert not [path for path in tmp_path.iterdir() if ":" in path.name], "a directory was made for the server"


def test_the_target_that_refuses_is_named(start_redis: StartRedis, start_riverbed: StartRiverbed) -> None:
    redis, ours = start_redis(), start_riverbed()
    with redis.client() as client, ours.client() as target:
        client.ask("XADD", "s", "1-1", "f", "v")
        target.ask("ACL", "SETUSER", "default", "-renamenx")
        assert f"{ours.port} refused RENAMENX: NOPERM" in refused(url(redis), url(ours))
        assert value_of(parse(target.ask("KEYS", "*"))) == []


def test_nothing_is_written_over(redis_server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not empty" in refused(url(redis_server), tmp_path)
    assert "http://x is not a server: expected HOST:PORT or redis://" in refused("http://x", tmp_path / "new")
    assert "is not the number of a database" in refused(url(redis_server), "redis://x/y")
    assert "is to take no database" in refused(url(redis_server), "redis://x/3")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("redis://h", Address("h")),
        ("redis://h:7/3", Address("h", 7, database=3)),
        ("rediss://u:p%40@[::1]:7", Address("::1", 7, "u", "p@", tls=True)),
        ("redis://:p@h/", Address("h", password="p")),
    ],
)
def test_urls(text: str, address: Address) -> None:
    assert parse_url(text) == address


@pytest.mark.parametrize(
    "text", ["redis_master:6379", "localhost:6379/2", "REDIS://:secret@h:6379", "redis:://h", "[::1:6379"]
)
def test_what_is_meant_for_a_server_is_no_new_directory(tmp_path: Path, text: str) -> None:
    with pytest.raises(Failure, match="is not a server") as refusal:
        server_address(text)
    assert "secret" not in str(refusal.value)
    assert server_address(f"./{text}") is None
    assert server_address("x" * 300) is None
    assert server_address(str(tmp_path / text)) is None


def test_the_files_of_tls_alone_mean_tls_but_beside_a_server_that_they_are_for() -> None:
    tls = TlsOptions(ca_file="ca.crt")
    for text in ("redis://h", "h:1", "rediss://h"):
        found = server_address(text, tls)
        assert found is not None and found.tls
    other = server_address("redis://h", tls, other="rediss://i")
    assert other is not None and not other.tls


def test_a_user_without_a_password_is_no_other_user(start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis()
    with redis.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all")
        client.ask("ACL", "SETUSER", "anyone", "on", "nopass", "~*", "+@all")
    reason = refused(f"redis://reader@127.0.0.1:{redis.port}", tmp_path / "new")
    assert "does not let us in: WRONGPASS" in reason and "put the password into" in reason
    assert imported(f"redis://anyone@127.0.0.1:{redis.port}", tmp_path / "new")["streams"] == 1


@pytest.mark.parametrize("text", ["", "h", "redis://", "redis://h:x", "redis://h:70000", "redis://h/-1", "unix:///x"])
def test_urls_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_url(text)


def test_report_for_people(start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis()
    with redis.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("SET", "[red]x", "v")
    (tmp_path / "new.partial-0123").mkdir()
    result = run(url(redis), tmp_path / "new")
    assert "new.partial-0123 was half made by a command that was killed" in result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == f"copied 127.0.0.1:{redis.port} to {tmp_path / 'new'}"
    assert "  streams   1" in lines
    assert lines[-1] == "left: 1 key of type string  [red]x"


def test_delivery_times_are_exact_while_the_clock_ticks(start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis()
    with redis.client() as client:
        client.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for number in range(1, 200):
            client.ask("XADD", "s", f"{number}-1", "f", "v")
            client.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        expected = comparable(value_of(parse(client.ask("XINFO", "STREAM", "s", "FULL", "COUNT", 0))))
    told = [(row[0], row[2], row[3]) for row in expected[b"groups"][0][b"pending"]]
    client_address = Address("127.0.0.1", redis.port)
    with livestream.RedisClient(client_address, 10) as connection:
        for _ in range(5):
            found = livestream.read_pending(connection, b"s", b"g")
            rows = [(livestream.id_text(row[0]), row[2], row[3]) for row in found.rows()]
            assert rows == told
            time.sleep(0.003)
