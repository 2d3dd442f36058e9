from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.commands.access.users import configured
from riverbed.server.commands.admin import config as config_commands
from riverbed.server.commands.request import Context
from riverbed.server.commands.table import COMMANDS
from riverbed.server.config.config import Config
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK
from tests.support.in_process import HandClock, Product
from tests.support.raw import parse
from tests.support.servers import RedisServer

Ask = Callable[..., Any]


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    product = Product(tmp_path / "store", HandClock())
    yield product
    product.close()


def asker(product: Product, config: Config) -> Ask:
    """Run one CONFIG command through its handler; an error comes back as its bytes."""
    request = product.request
    request.context = Context(config, product.engine, product.clock)
    request.context.users = configured(config)
    request.may_block = False

    def ask(*words: str | bytes) -> Any:
        request.argv = [b"CONFIG", *(word.encode() if isinstance(word, str) else word for word in words)]
        row = COMMANDS[b"CONFIG"].subcommands.get(request.argv[1].upper(), COMMANDS[b"CONFIG"])
        try:
            return row.handler(request)
        except CommandError as error:
            return error.text

    return ask


@pytest.fixture
def ask(product: Product) -> Ask:
    return asker(product, Config())


def test_get_answers_a_map_of_every_match_once(ask: Ask) -> None:
    assert ask("GET", "tcp-*", "TIMEOUT", "t[ci]*") == {
        b"tcp-backlog": b"511",
        b"tcp-keepalive": b"300",
        b"timeout": b"0",
    }


@pytest.mark.parametrize("name", ["maxmemory", "maxmemory-policy", "save", "appendonly", "databases", "timeout"])
def test_get_knows_what_monitors_ask_for(ask: Ask, name: str) -> None:
    assert list(ask("GET", name)) == [name.encode()]


def test_set_then_get(ask: Ask) -> None:
    assert ask("SET", "timeout", "5", "client-query-buffer-limit", "2mb") == OK
    assert ask("GET", "timeout", "client-query-buffer-limit") == {
        b"client-query-buffer-limit": b"2097152",
        b"timeout": b"5",
    }


def test_password_may_be_any_bytes(ask: Ask) -> None:
    assert ask("SET", "requirepass", b"\xff\x00 x") == OK
    assert ask("GET", "requirepass") == {b"requirepass": b"\xff\x00 x"}


def test_fixed_settings_take_their_own_value_and_explain_any_other(ask: Ask) -> None:
    assert ask("SET", "appendonly", "YES", "save", "", "maxmemory", "0") == OK
    assert ask("SET", "maxmemory", "1gb") == (
        b"ERR CONFIG SET failed (possibly related to argument 'maxmemory') - only '0' is supported:"
        b" data lives on disk and nothing is evicted; set limits with MAXLEN or MINID"
    )


def test_unknown_subcommand_is_told_as_typed(ask: Ask) -> None:
    assert ask("Foo") == b"ERR unknown subcommand 'Foo'. Try CONFIG HELP."


def test_rewrite_needs_a_file(ask: Ask) -> None:
    assert ask("REWRITE") == config_commands.NO_FILE.encode()


def test_rewrite_writes_the_file(product: Product, tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text("timeout 1\n")
    ask = asker(product, Config.load([str(path)]))
    assert ask("SET", "timeout", "2") == OK
    assert ask("REWRITE") == OK
    assert path.read_text() == "timeout 2\n"


def test_rewrite_tells_what_the_system_refused(product: Product, tmp_path: Path) -> None:
    path = tmp_path / "of the server" / "riverbed.conf"
    path.parent.mkdir()
    path.write_text("timeout 1\n")
    config = Config.load([str(path)])
    config.set([("timeout", "2")])
    path.unlink()
    path.parent.rmdir()
    assert asker(product, config)("REWRITE") == b"ERR Rewriting config file: No such file or directory"


def test_rewrite_makes_a_file_that_was_deleted_again(product: Product, tmp_path: Path) -> None:
    path = tmp_path / "riverbed.conf"
    path.write_text("timeout 1\nrequirepass right\n")
    config = Config.load([str(path), "--maxclients", "77"])
    path.unlink()
    assert asker(product, config)("REWRITE") == OK
    assert path.stat().st_mode & 0o777 == 0o600
    again = Config.load([str(path)])
    assert (again.timeout, again.maxclients, again.requirepass) == (1, 77, config.requirepass)


def test_resetstat_resets_the_counters(product: Product, ask: Ask) -> None:
    stats = product.request.context.stats
    stats.commands_processed = 7
    product.run("XADD", "s", "*", "f", "v")
    product.run("PEXPIRE", "s", 10)
    product.clock.now_ms += 20
    assert product.run("EXISTS", "s") == 0
    assert product.engine.txn.expired_keys == 1  # which INFO adds
    assert ask("RESETSTAT") == OK
    assert stats.commands_processed == 0
    assert product.engine.txn.expired_keys == stats.expired_keys == 0


def test_help_names_every_subcommand(ask: Ask) -> None:
    text = "\n".join(ask("HELP"))
    assert [name for name in COMMANDS[b"CONFIG"].subcommands if name.decode() not in text] == []


def test_errors_are_those_of_redis(ask: Ask, redis_server: RedisServer) -> None:
    asked = [
        ("SET", "timeout", "x"),
        ("SET", "timeout", "-1"),
        *(("SET", "maxmemory-clients", word) for word in ("101%", "-1", "x%", "5%5", "-5%", "%", "1.5%", "1q")),
        ("SET", "timeout", "05"),
        ("SET", "timeout", " 5"),
        ("SET", "timeout", "1kb"),
        ("SET", "timeout", "1", "timeout", "2"),
        ("SET", "timeout", "x", "nosuch", "1"),
        ("SET", "timeout", "1", "nosuch"),
        ("SET", "nosuch", "1", "timeout", "x"),
        ("SET", "NoSuch", "1"),
        ("SET", "TIMEOUT", "x"),
        ("SET", "", ""),
        ("SET", "databases", "3"),
        ("SET", "logfile", "x"),
        ("SET", "unixsocketperm", "700"),
        ("SET", "appenddirname", "x"),
        ("SET", "appendfsync", "x"),
        ("SET", "loglevel", "x"),
        ("SET", "protected-mode", "x"),
        ("SET", "client-query-buffer-limit", "1"),
        ("SET", "proto-max-bulk-len", "12"),
        ("SET", "stream-node-max-bytes", "-1"),
        ("SET", "stream-node-max-bytes", "1q"),
        ("SET", "stream-node-max-entries", "-1"),
        ("SET", "maxclients", "0"),
        ("SET", "slowlog-log-slower-than", "-2"),
        ("SET", "slowlog-max-len", "99999999999999999999"),
        ("SET", "latency-monitor-threshold", "-1"),
        ("SET", "auto-aof-rewrite-percentage", "-1"),
        ("SET", "auto-aof-rewrite-min-size", "x"),
        ("SET", "client-output-buffer-limit", "normal 1mb 2"),
        ("SET", "client-output-buffer-limit", "normal x 2 3"),
        ("SET", "client-output-buffer-limit", "normal 1 2 -3"),
        ("SET", "client-output-buffer-limit", "foo 1 2 3"),
        ("FOO",),
        ("REWRITE",),
    ]
    with redis_server.client() as client:
        replies = client.pipeline([("CONFIG", *words) for words in asked])
    theirs = {words: parse(reply).text for words, reply in zip(asked, replies, strict=True)}
    assert {words: ask(*words) for words in asked} == theirs


def test_values_read_back_as_from_redis(ask: Ask, redis_server: RedisServer) -> None:
    sets = [
        ("timeout", "5"),
        ("client-output-buffer-limit", "slave 1kb 2 3 pubsub 1 1 1"),
        ("appendfsync", "EVERYSEC"),
        ("protected-mode", "NO"),
        ("client-query-buffer-limit", "10gb"),
        ("slowlog-log-slower-than", "-1"),
        ("maxmemory-clients", "5%"),
    ]
    names = [name for name, _ in sets]
    words = [word for pair in sets for word in pair]
    with redis_server.client() as client:
        assert client.ask("CONFIG", "SET", *words) == b"+OK\r\n"
        theirs = {name.text: value.text for name, value in client.tree("CONFIG", "GET", *names).pairs()}
    assert ask("SET", *words) == OK
    assert ask("GET", *names) == theirs
