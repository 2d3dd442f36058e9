"""Users that change while a command of theirs is under way in slices, and what a refusal leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from riverbed.server.commands.access.user import User
from riverbed.server.commands.clients import connection
from riverbed.server.commands.keys import keys
from riverbed.server.errors import CommandError
from tests.support.ticks import Ticks, in_loop

KEYS = " ".join(f"a{number}" for number in range(200))


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_KEYS_A_SLICE", 20)
    monkeypatch.setattr(connection, "_WORDS_A_SLICE", 20)


def test_the_keys_of_a_command_in_slices_are_looked_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, client = ticks.connect(), ticks.connect()
        await ticks.ask(admin, "ACL SETUSER u on nopass ~a* +@all")
        await ticks.ask(client, "AUTH u x")
        with patch.object(User, "denies", autospec=True, side_effect=User.denies) as denies:
            assert await ticks.ask(client, f"EXISTS {KEYS}") == [b":0\r\n"]
        assert denies.call_count == 1
        ticks.close()

    in_loop(body())


def test_a_command_in_slices_ends_when_its_user_may_no_longer(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, client = ticks.connect(), ticks.connect()
        await ticks.ask(admin, "ACL SETUSER u on nopass ~a* +@all")
        await ticks.ask(client, "AUTH u x")
        client.send(f"EXISTS {KEYS}")
        admin.send("ACL SETUSER u -exists")
        await ticks.settle()
        assert client.replies()[0].startswith(b"-NOPERM")
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("change", ["ACL DELUSER u", "ACL SETUSER u off", "ACL SETUSER u resetpass >other"])
def test_nobody_logs_in_as_a_user_that_has_gone_meanwhile(tmp_path: Path, change: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, client = ticks.connect(), ticks.connect()
        await ticks.ask(admin, "ACL SETUSER u on >p ~* +@all", "ACL SETUSER default -xadd")
        client.send("HELLO 3 AUTH u p " + "SETNAME n " * 100)
        admin.send(change)
        await ticks.settle()
        ticks.clock.now_ms += 5000  # a wrong password is answered late
        await ticks.ask(admin, "PING")
        assert client.session.user is ticks.executor.context.users.default
        ticks.close()

    in_loop(body())


@contextmanager
def no_error_in_a_circle() -> Iterator[None]:
    """Fail if an error is left that only the garbage collector would find: it has the words of its request."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, CommandError)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    "lines",
    [
        ["ECHO word"],
        ["XADD b * f v"],
        ["XLEN b"],
        ["PUBLISH b word"],
        ["SUBSCRIBE b"],
        ["ACL SETUSER u +word"],
        ["MULTI", "ECHO word", "EXEC"],
        ["MULTI", "XADD a 0-0 f v", "EXEC"],
        ["MULTI", "XADD a 1-1 f v", "AUTH u wrong", "EXEC"],
        ["MULTI", "SELECT 99", "XADD a 1-1 f v", "EXEC"],
        ["XADD a 0-0 f v"],
        ["XADD a f"],
        ["WORD word"],
        ["COPY a c"],
        ["SELECT 99"],
    ],
    ids=", ".join,
)
def test_nothing_of_a_refused_request_stays_in_memory(tmp_path: Path, lines: list[str]) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, client = ticks.connect(), ticks.connect()
        await ticks.ask(admin, "ACL SETUSER u on >p ~a ~c &a +@all -echo -acl")
        await ticks.ask(admin, "XGROUP CREATE a g $ MKSTREAM", "XGROUP POLICY a g DEADLETTER b MAXDELIVERIES 1")
        await ticks.ask(client, "AUTH u p")
        with no_error_in_a_circle():
            replies = await ticks.ask(client, *lines)
            assert any(b"-" in reply for reply in replies)
        ticks.close()

    in_loop(body())
