"""A long command never goes on in a stream, or in a group, that has taken the name of the one that it began on.

It answers as if the name were free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from riverbed.store.databases.copying import CopyInTheMaking
from tests.server.execution.test_sliced_commands import (
    ENTRIES,
    LONG,
    close_and_check,
    contents,
    fill,
    finish,
    ticks_of,
    to_lists,
)
from tests.support.ticks import Client, Ticks, in_loop

__all__ = ["ticks_of"]

# Of a key: what frees it, and what gives it to another stream, of which `z` and the key in database 1 are made.
FREED = {"RENAME": "DEL {}", "SWAPDB": "FLUSHALL"}
TAKEN = {"RENAME": "RENAME z {}", "SWAPDB": "SWAPDB 0 1"}
# It takes one slice alone, or nothing of it can be seen in the tables.
WRITES = [name for name in LONG if name != "XREADGROUP CLAIM" and not name.startswith("XPENDING")]
OF_GROUPS = [name for name in WRITES if name.startswith(("XACK", "XCLAIM", "XNACK", "XAUTO", "XREADGROUP"))]
DELIVERED = 20


def key_of(command: str) -> str:
    return "u" if " u " in command else "s"


async def begin_on(ticks: Ticks, command: str) -> Client:
    """The client whose command has run its first slice, on a key of which `z` and that key in database 1 are copies."""
    client = ticks.connect()
    key = key_of(command)
    await fill(ticks, client)
    await ticks.ask(client, f"COPY {key} z", f"COPY {key} {key} DB 1")
    ticks.clock.now_ms += 10
    client.send(command)
    await asyncio.sleep(0)
    assert client.session.is_sliced
    return client


async def reply_when(ticks: Ticks, command: str, others: list[str]) -> bytes:
    """What a command answers when another client sends these in one piece behind its first slice."""
    client, other = await begin_on(ticks, command), ticks.connect()
    other.send(*(line.format(key_of(command)) for line in others))
    (reply,) = await finish(ticks, client)
    await finish(ticks, other, len(others))
    return reply


@pytest.mark.parametrize("how", TAKEN)
@pytest.mark.parametrize("name", WRITES)
def test_another_stream_of_the_name_is_left_alone(ticks_of: Callable[[str], Ticks], name: str, how: str) -> None:
    async def body() -> None:
        command, key = LONG[name], key_of(LONG[name])
        ticks, freed = ticks_of("with"), ticks_of("freed")
        client, other = await begin_on(ticks, command), ticks.connect()
        newcomer = contents(ticks)[b"z"]
        other.send(TAKEN[how].format(key))
        (reply,) = await finish(ticks, client)
        assert reply == await reply_when(freed, command, [FREED[how]])
        assert contents(ticks)[key.encode()] == newcomer
        close_and_check(ticks)
        freed.close()

    in_loop(body())


@pytest.mark.parametrize("name", OF_GROUPS)
def test_another_group_of_the_name_is_left_alone(ticks_of: Callable[[str], Ticks], name: str) -> None:
    async def body() -> None:
        command = LONG[name]
        group = "fresh" if " fresh " in command else "g"
        ticks, freed = ticks_of("with"), ticks_of("freed")
        destroy = f"XGROUP DESTROY s {group}"
        again = f"XGROUP CREATE s {group} 500-0"
        deliver = f"XREADGROUP GROUP {group} Carol COUNT {DELIVERED} STREAMS s >"
        reply = await reply_when(ticks, command, [destroy, again, deliver])
        assert reply == await reply_when(freed, command, [destroy])
        (pending,) = await ticks.ask(ticks.connect(), f"XPENDING s {group} - + {ENTRIES}")
        assert [(owner, count) for _, owner, _, count in to_lists(pending)] == [(b"Carol", b"1")] * DELIVERED
        close_and_check(ticks)
        freed.close()

    in_loop(body())


@pytest.mark.parametrize("name", ["XPENDING", "XPENDING of one"])
def test_pending_entries_of_another_group_are_not_shown(ticks_of: Callable[[str], Ticks], name: str) -> None:
    async def body() -> None:
        ticks, freed = ticks_of("with"), ticks_of("freed")
        reply = await reply_when(ticks, LONG[name], [TAKEN["RENAME"]])
        assert reply == await reply_when(freed, LONG[name], [FREED["RENAME"]])
        assert 0 < len(to_lists(reply)) < 500
        ticks.close()
        freed.close()

    in_loop(body())


def test_a_command_goes_on_in_its_stream_that_had_another_name_for_a_moment(ticks_of: Callable[[str], Ticks]) -> None:
    async def body() -> None:
        ticks, alone = ticks_of("with"), ticks_of("alone")
        reply = await reply_when(ticks, LONG["XDELEX"], ["RENAME {} old", "RENAME old {}"])
        assert reply == await reply_when(alone, LONG["XDELEX"], ["PING"])
        ticks.close()
        alone.close()

    in_loop(body())


@pytest.mark.parametrize("name", ["XDELEX", "XPENDING"])
def test_streams_get_no_other_numbers_while_a_command_remembers_them(
    ticks_of: Callable[[str], Ticks], name: str
) -> None:
    async def body() -> None:
        ticks, alone = ticks_of("with"), ticks_of("alone")
        client, other = await begin_on(ticks, LONG[name]), ticks.connect()
        (refused,) = await ticks.ask(other, "DEBUG LOADAOF")
        assert refused.startswith(b"-ERR commands in slices are under way")
        (reply,) = await finish(ticks, client)
        assert reply == await reply_when(alone, LONG[name], ["PING"])
        assert await ticks.ask(other, "DEBUG LOADAOF") == [b"+OK\r\n"]
        ticks.close()
        alone.close()

    in_loop(body())


@pytest.mark.parametrize("has_copied", [False, True])
@pytest.mark.parametrize("is_undone", [False, True])
def test_a_command_does_not_take_its_stream_for_another_one_when_it_has_got_another_number(
    ticks_of: Callable[..., Ticks], has_copied: bool, is_undone: bool
) -> None:
    """The log gives numbers out in the order of its lines: a copy that came to nothing has had one of its own."""

    async def body() -> None:
        ticks = ticks_of("store")
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD source 1-0 f v")
        database = ticks.engine.txn.databases[0]
        source = database.stream(b"source", 0)
        assert source is not None
        if has_copied:
            CopyInTheMaking(database, source).close()
        await ticks.ask(client, *(f"XADD a {number}-0 f v" for number in range(1, ENTRIES + 1)))
        client.send("XDEL a " + " ".join(f"{number}-0" for number in range(1, ENTRIES + 1)))
        sliced = None
        while sliced is None or not sliced.kept:
            await asyncio.sleep(0)
            sliced = ticks.executor.sliced_commands.of(client.session)
        if is_undone:
            ticks.executor.failures.roll_back(ticks.engine.txn.mark())
        (reply,) = await finish(ticks, client)
        (length,) = await ticks.ask(other, "XLEN a")
        left = int(length[1:])
        if has_copied and is_undone:
            done = ENTRIES - left
            assert 0 < done < ENTRIES
            assert reply.startswith(
                b"-PARTIAL XDEL was done in part, which stays: the first %d of %d " % (done, ENTRIES)
            )
            assert b"The rest was not done: ERR the tables were exchanged, or read again" in reply
        else:
            assert (reply, left) == (b":%d\r\n" % ENTRIES, 0)
        ticks.close()

    in_loop(body())
