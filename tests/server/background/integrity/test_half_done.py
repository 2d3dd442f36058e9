"""A command that meets a damaged row in the midst of its changes has changed nothing, also where it logs at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from riverbed.store.format.groups import CONSUMER_KEY_BYTES
from tests.support.ticks import Client, Ticks, in_loop

SETTINGS = {"auto_repair": "no", "stream_node_max_entries": 5}
SEEN = (
    "KEYS *",
    "XINFO STREAM s FULL COUNT 0",
    "XINFO STREAM t FULL COUNT 0",
    "XPENDING s g",
    "XPENDING s h",
    "DBSIZE",
)

# What fills the server; the last line is not in the tables yet.
FILLED = [
    *(f"XADD s {number}-1 f v" for number in range(1, 31)),
    "XADD t 1-1 f v",
    "XGROUP CREATE s g 0",
    "XGROUP CREATE s h 0",
    *(f"XREADGROUP GROUP {group} {name} COUNT 5 STREAMS s >" for group in "gh" for name in ("Alice", "Bob")),
]
YOUNG = "XREADGROUP GROUP g Alice COUNT 5 STREAMS s >"


@contextmanager
def damaged(ticks: Ticks, table: str, number: int) -> Iterator[None]:
    """Have the last bit of a row, given by its number in its table, flipped meanwhile."""
    txn = ticks.engine.txn
    with txn.lmdb.cursor(txn.handles[table]) as cursor:
        rows = [(key, row) for key, row in cursor if table != "groups" or len(key) == CONSUMER_KEY_BYTES]
    key, row = rows[number]
    txn.lmdb.put(key, row[:-1] + bytes((row[-1] ^ 1,)), db=txn.handles[table])
    yield
    ticks.engine.txn.lmdb.put(key, row, db=ticks.engine.txn.handles[table])


async def ask(ticks: Ticks, client: Client, *lines: str) -> list[bytes]:
    client.send(*lines)
    await ticks.settle()
    return client.replies()


@pytest.mark.parametrize(
    ("command", "table", "number"),
    [
        ("COPY s copy", "entries", 12),
        ("COPY s t REPLACE", "entries", 12),
        ("COPY s copy", "pel", 4),
        ("XDEL s 2-1 3-1 22-1", "nodes", 4),
        ("XACK s g 11-1 12-1 3-1", "pel", 0),
        ("XACK s g 1-1 2-1 3-1 4-1 5-1 6-1", "pel", 1),
        ("XDELEX s DELREF IDS 2 2-1 3-1", "pel", 3),
        ("XACKDEL s g DELREF IDS 2 2-1 12-1", "pel", 2),
        ("XTRIM s MAXLEN = 12 DELREF", "pel", 3),
        ("XTRIM s MINID = 8 DELREF", "entries", 5),
        ("XTRIM s MAXLEN = 3 ACKED", "entries", 25),
    ],
)
def test_a_command_that_fails_half_way_has_changed_nothing(
    tmp_path: Path, command: str, table: str, number: int
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, **SETTINGS)
        client = ticks.connect()
        await ask(ticks, client, *FILLED, "SAVE", YOUNG)
        if "ACKED" in command:
            ids = " ".join(f"{number}-1" for number in range(1, 16))
            await ask(ticks, client, f"XACK s g {ids}", "XGROUP SETID s g $", "XGROUP SETID s h $", "SAVE")
        before = await ask(ticks, client, *SEEN)
        logged = ticks.engine.log.end
        with damaged(ticks, table, number):
            (reply,) = await ask(ticks, client, command)
            assert reply.startswith(b"-ERR") and b"damaged" in reply, reply
        assert await ask(ticks, client, *SEEN) == before
        assert ticks.engine.log.end == logged
        (reply,) = await ask(ticks, client, command)
        assert not reply.startswith(b"-"), reply
        assert await ask(ticks, client, *SEEN) != before
        ticks.close()

    in_loop(body())


def test_a_list_with_a_damaged_run_is_no_bug(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, **SETTINGS)
        client = ticks.connect()
        await ask(ticks, client, *FILLED, "SAVE")
        with damaged(ticks, "pel", 2):
            for more in ("", " Alice"):
                (reply,) = await ask(ticks, client, f"XPENDING s h - + 20{more}")
                assert reply.startswith(b"-ERR") and b"damaged" in reply, reply
        ticks.close()

    in_loop(body())


def test_a_command_that_has_changed_nothing_is_not_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To undo it is to execute the log's tail again, with each command that a client repeats until the repair."""

    async def body() -> None:
        ticks = Ticks(tmp_path, **SETTINGS)
        client = ticks.connect()
        await ask(ticks, client, *FILLED, "SAVE")
        undone: list[int] = []
        monkeypatch.setattr(ticks.executor.failures, "roll_back", undone.append)
        with damaged(ticks, "pel", 0):
            for _ in range(3):
                for command in ("XACK s g 3-1", "XACK s g 3-1 4-1", "XDEL s 3-9", "COPY t u"):
                    (reply,) = await ask(ticks, client, command)
                    assert reply.startswith(b"-") == command.startswith("XACK"), reply
                await ask(ticks, client, "DEL u")
        assert undone == []
        ticks.close()

    in_loop(body())
