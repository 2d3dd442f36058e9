"""No number of digits makes a number from outside an exception of Python, which counts as a bug of the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.server.commands.keys.scan import parse_cursor
from riverbed.server.commands.streams.options import parse_append
from riverbed.server.config.kinds import BadValueError, parse_memory
from riverbed.server.errors import CommandError
from riverbed.server.numbers import TOO_LARGE, parse_digits
from riverbed.store.wire.reference.ids import parse_id, parse_number
from tests.support.effort import measured
from tests.support.ticks import Ticks, in_loop

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("digits", "number"),
    [("0", 0), (b"007", 7), ("0" * 5000, 0), (b"0" * 5000 + b"8", 8), ("9" * 40, 10**40 - 1), (b"9" * 41, TOO_LARGE)],
)
def test_digits_of_any_count_are_a_number(digits: str | bytes, number: int) -> None:
    assert parse_digits(digits) == number


COMMANDS = [
    f"SCAN {DIGITS}",
    f"SCAN -{DIGITS}",
    f"SCAN 0 COUNT {DIGITS}",
    f"XADD s {DIGITS}-* f v",
    f"XADD s {DIGITS} f v",
    f"XADD s 1-{DIGITS} f v",
    f"XADD s MAXLEN ~ {DIGITS} * f v",
    f"XADD s MAXLEN ~ 5 LIMIT {DIGITS} * f v",
    f"XRANGE s {DIGITS} +",
    f"XRANGE s - + COUNT {DIGITS}",
    f"XREAD BLOCK {DIGITS} STREAMS s 0",
    f"XACK s g {DIGITS}-1",
    f"XSETID s 1-1 ENTRIESADDED {DIGITS}",
    f"XGROUP CREATE s h 0 ENTRIESREAD {DIGITS}",
    f"XCLAIM s g c 0 1-1 TIME {DIGITS}",
    f"EXPIRE s {DIGITS}",
    f"SELECT {DIGITS}",
    f"HELLO {DIGITS}",
    f"CLIENT KILL ID {DIGITS}",
    f"CLIENT PAUSE {DIGITS}",
    f"CLIENT UNBLOCK {DIGITS}",
    f"WAIT {DIGITS} 0",
    f"SLOWLOG GET {DIGITS}",
    f"CONFIG SET maxmemory-clients {DIGITS}",
    f"CONFIG SET maxmemory-clients {DIGITS}%",
    f"CONFIG SET timeout {DIGITS}",
    f"CONFIG SET unixsocketperm {DIGITS.replace('9', '7')}",
    f"CONFIG SET proto-max-bulk-len {DIGITS}mb",
    f"CONFIG SET auto-aof-rewrite-percentage {DIGITS}",
    f"REPLICAOF 127.0.0.1 {DIGITS}",
    f"REPLCONF listening-port {DIGITS}",
    f"REPLCONF listening-port {'0' * 10}{DIGITS}",
    f"FAILOVER TO 127.0.0.1 {DIGITS}",
    f"PSYNC ? {DIGITS}",
    f"MEMORY USAGE s SAMPLES {DIGITS}",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[:30])
def test_a_number_of_5000_digits_is_refused(tmp_path: Path, command: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XGROUP CREATE s g 0")
        (reply,) = await ticks.ask(client, command)
        assert b"internal error" not in reply
        assert "a bug" not in caplog.text
        assert reply.startswith(b"-")
        ticks.close()

    in_loop(body())


LONG = "1" * 20_000_000
PARSERS: dict[str, Callable[[], object]] = {
    "ID": lambda: parse_append([b"XADD", b"s", LONG.encode(), b"f", b"v"], 100, from_log=False),
    "ID with a sign": lambda: parse_append([b"XADD", b"s", LONG.encode() + b"-", b"f", b"v"], 100, from_log=False),
    "cursor": lambda: parse_cursor(LONG.encode() + b"x"),
    "memory": lambda: parse_memory(LONG + "!"),
    "unit of memory": lambda: parse_memory("1" + "b" * len(LONG) + "!"),
    "number in a log": lambda: parse_number(LONG.encode() + b"x"),
    "ID in a log": lambda: parse_id(LONG.encode() + b"x-1", may_be_short=False),
}


def effort_to_refuse(name: str) -> float:
    with measured() as effort:
        try:
            refused = PARSERS[name]() is None
        except (CommandError, BadValueError):
            refused = True
    assert refused
    return effort.units


@pytest.mark.parametrize("name", PARSERS)
def test_digits_of_megabytes_are_refused_in_no_more_time_than_it_takes_to_read_them_once(name: str) -> None:
    """The least of several counts: 20 MB are copied as well, and a busy machine may be short of caches for a while."""
    assert min(effort_to_refuse(name) for _ in range(4)) < 2.5
