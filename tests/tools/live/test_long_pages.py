"""Pages of entries that are longer than a reply may be are asked for again, with fewer entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from riverbed.server.protocol.encode import encode
from riverbed.store.ids import MAX_ID, MIN_ID, parse_id
from riverbed.store.progress import ignore
from riverbed.tools.console.console import Failure
from riverbed.tools.live.livestream import read_entries, read_pending
from riverbed.tools.live.redisclient import Address, LongReplyError, RedisClient
from riverbed.tools.offline.streamread import server_entries
from tests.support.impostor import impostor
from tests.support.servers import RiverbedServer

DATABASE = 3
VALUE = b"v" * 50_000

Read = Callable[[RedisClient], Iterator[tuple[bytes, list[bytes]]]]


def as_import_reads(client: RedisClient) -> Iterator[tuple[bytes, list[bytes]]]:
    client.call("SELECT", DATABASE)
    for entry_id, words in read_entries(client, b"s", MAX_ID):
        yield b"%d-%d" % divmod(entry_id, 1 << 64), words


def as_dump_reads(client: RedisClient) -> Iterator[tuple[bytes, list[bytes]]]:
    return server_entries(client, DATABASE, b"s", MIN_ID, MAX_ID, ignore)


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERBED_MAX_REPLY_MB", "1")


def fill(server: RiverbedServer, values: list[bytes]) -> list[tuple[bytes, list[bytes]]]:
    entries = [(b"%d-0" % number, [b"f", value, b"g", value]) for number, value in enumerate(values, 1)]
    with server.client() as client:
        client.ask("SELECT", DATABASE)
        for entry_id, words in entries:
            assert client.ask("XADD", "s", entry_id, *words).startswith(b"$")
    return entries


@pytest.mark.parametrize("read", [as_import_reads, as_dump_reads])
def test_long_entries_behind_short_ones_are_all_read_once(riverbed: RiverbedServer, read: Read) -> None:
    entries = fill(riverbed, [b"short"] * 300 + [VALUE] * 40 + [b"short"] * 10 + [VALUE] * 40)
    with RedisClient(Address("127.0.0.1", riverbed.port), 60) as client:
        assert list(read(client)) == entries
        assert client.call("XLEN", "s") == len(entries)


@pytest.mark.parametrize("read", [as_import_reads, as_dump_reads])
def test_one_entry_that_is_longer_than_a_reply_may_be_is_refused(riverbed: RiverbedServer, read: Read) -> None:
    fill(riverbed, [b"short", VALUE * 12, b"short"])
    with (
        RedisClient(Address("127.0.0.1", riverbed.port), 60) as client,
        pytest.raises(LongReplyError, match="RIVERBED_MAX_REPLY_MB allows more"),
    ):
        list(read(client))


def test_a_password_from_the_environment_serves_again(
    start_riverbed: Callable[..., RiverbedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_riverbed()
    entries = fill(server, [VALUE] * 30)
    with server.client() as client:
        client.ask("CONFIG", "SET", "requirepass", "secret")
    monkeypatch.setenv("REDISCLI_AUTH", "secret")
    with RedisClient(Address("127.0.0.1", server.port), 60) as client:
        monkeypatch.delenv("REDISCLI_AUTH")
        assert [parse_id(entry_id) for entry_id, _ in as_dump_reads(client)] == [parse_id(each) for each, _ in entries]


@pytest.mark.parametrize("last", [b"99-0", b"5"])
def test_a_server_that_goes_back_is_not_read_for_ever(last: bytes) -> None:
    page = encode([[b"100-0", [b"f", b"v"]]] * 999 + [[last, [b"f", b"v"]]], 2)
    with (
        impostor(b"+PONG\r\n", b"+OK\r\n", b":9999\r\n", b":1\r\n", *[page] * 3) as port,
        RedisClient(Address("127.0.0.1", port), 60) as client,
        pytest.raises(Failure, match=r"XRANGE from .* on ends with"),
    ):
        for _ in server_entries(client, DATABASE, b"s", MIN_ID, MAX_ID, ignore):
            pass


class Repeating:
    """A server that gives the same full page again and again."""

    bytes_received = 0

    def __init__(self, page: list[Any]) -> None:
        self._page = page

    def call_all(self, commands: list[Any]) -> list[Any]:
        return [[b"1", b"0"], self._page, [b"1", b"0"]]

    def send(self, commands: list[Any]) -> None: ...

    def receive(self) -> list[Any]:
        return self._page


def test_a_server_that_repeats_a_page_is_not_asked_for_ever() -> None:
    pending: Any = Repeating([[b"%d-0" % number, b"c", 0, 1] for number in range(1, 10_001)])
    with pytest.raises(ValueError, match="behind those from 10000-1 on"):
        read_pending(pending, b"s", b"g")
    entries: Any = Repeating([[b"%d-0" % number, [b"f", b"v"]] for number in range(1, 10_001)])
    with pytest.raises(ValueError, match="XRANGE from 10000-1 on ends with b'10000-0'"):
        list(read_entries(entries, b"s", MAX_ID))
