"""What the tests of `riverbed replay` share: running it, looking at what it made, and a small log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from riverbed.store.format.log_lines import encode_command
from tests.conftest import broken_invariants
from tests.support.in_process import HandClock, Product, value_of
from tests.support.program import report, run
from tests.support.raw import RawClient, parse
from tests.support.scripts.generators import Family, Generator, KeyCommands
from tests.support.scripts.group_commands import NewerCommands

LOG = "appendonlydir"
Ask = Callable[..., Any]

# Those that change keys.
KEYS: Family = [
    (4, KeyCommands.delete),
    (6, KeyCommands.rename),
    (6, KeyCommands.copy),
    (5, KeyCommands.move),
    (1, KeyCommands.flush),
    (1, KeyCommands.swapdb),
    (8, KeyCommands.expire),
    (3, KeyCommands.persist),
]


class AnyGenerator(NewerCommands, Generator):
    """Streams, groups and keys."""


replay = partial(report, "replay")


def refused(source: Path, target: Path, *options: object) -> str:
    """Why `riverbed replay` makes nothing."""
    before = sorted(target.parent.iterdir())
    result = run("replay", source, target, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sorted(target.parent.iterdir()) == before
    assert result.stderr.startswith("riverbed: "), result.stderr
    return result.stderr.removeprefix("riverbed: ").strip()


# -- what is in a store ------------------------------------------------------------------------------------------------


def state_of(ask: Ask, deadline: Callable[[int, bytes], int]) -> dict[tuple[int, bytes], Any]:
    """Everything stored: XINFO STREAM FULL, the deadline and the pending entries of every group, of every key."""
    state = {}
    for database in range(16):
        ask("SELECT", database)
        for key in ask("KEYS", "*"):
            full = ask("XINFO", "STREAM", key, "FULL", "COUNT", 0)
            groups = dict(zip(full[::2], full[1::2], strict=True))[b"groups"]
            pending = [ask("XPENDING", key, group[1]) for group in groups]
            state[database, key] = full, pending, deadline(database, key)
    ask("SELECT", 0)
    return state


def state_in(product: Product) -> dict[tuple[int, bytes], Any]:
    def deadline(database: int, key: bytes) -> int:
        stream = product.engine.txn.databases[database].stream(key, 0)
        assert stream is not None
        return stream.expire_ms or -1

    return state_of(product.run, deadline)


def opened(directory: Path, now_ms: int) -> dict[tuple[int, bytes], Any]:
    """The state in `directory`, which must be sound."""
    assert broken_invariants(directory) == []
    product = Product(directory, HandClock(now_ms))
    try:
        return state_in(product)
    finally:
        product.close()


def shown_by(client: RawClient) -> dict[tuple[int, bytes], Any]:
    def ask(*words: object) -> Any:
        return value_of(parse(client.ask(*words)))

    return state_of(ask, lambda database, key: ask("PEXPIRETIME", key))


# -- logs --------------------------------------------------------------------------------------------------------------


def xadd(number: int, key: str = "s") -> tuple[str, ...]:
    return "XADD", key, f"{number}-1", "field", "value" * 20


def small_log(directory: Path) -> Path:
    """A directory with a log of ours: ten batches, of XADD 1-1 to 10-1, at 1,700,000,000,001 ms and so on."""
    clock = HandClock()
    product = Product(directory, clock)
    for number in range(1, 11):
        clock.now_ms += 1
        product.run(*xadd(number))
    product.close()
    return directory


def file_of(log: Path) -> Path:
    return log / LOG / "appendonly.aof.1.incr.aof"


def encoded(words: Sequence[str]) -> bytes:
    return encode_command([word.encode() for word in words])


def entry_ids(directory: Path) -> list[str]:
    product = Product(directory, HandClock())
    try:
        return [entry_id.decode() for entry_id, _ in product.run("XRANGE", "s", "-", "+")]
    finally:
        product.close()
