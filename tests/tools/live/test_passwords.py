from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverbed.tools.console.console import Failure
from riverbed.tools.live.passwords import find_password
from riverbed.tools.live.redisclient import Address, RedisClient
from tests.support.servers import RiverbedServer
from tests.support.terminal import on_terminal

SECRET = "correct horse"


@pytest.fixture(autouse=True)
def none_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No password in the environment, and none remembered."""
    monkeypatch.delenv("REDISCLI_AUTH", raising=False)
    monkeypatch.delenv("RIVERBED_PASSWORD_FILE", raising=False)
    find_password.cache_clear()
    yield
    find_password.cache_clear()


@pytest.fixture
def closed(start_riverbed: Callable[..., RiverbedServer]) -> RiverbedServer:
    return start_riverbed(options={"requirepass": SECRET})


def connect(server: RiverbedServer, user: str | None = None, password: str | None = None) -> None:
    with RedisClient(Address("localhost", server.port, user, password), 10) as client:
        assert client.call("PING") == b"PONG"


@pytest.mark.parametrize("user", [None, "default"])
def test_the_password_comes_from_the_environment(
    closed: RiverbedServer, monkeypatch: pytest.MonkeyPatch, user: str | None
) -> None:
    monkeypatch.setenv("REDISCLI_AUTH", SECRET)
    connect(closed, user)


def test_the_password_comes_from_the_first_line_of_a_file(
    closed: RiverbedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\nand no more\n")
    monkeypatch.setenv("RIVERBED_PASSWORD_FILE", str(path))
    monkeypatch.setenv("REDISCLI_AUTH", "wrong")
    connect(closed)


def test_a_file_that_cannot_be_read_is_named(closed: RiverbedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIVERBED_PASSWORD_FILE", "/nowhere")
    with pytest.raises(Failure, match="RIVERBED_PASSWORD_FILE: /nowhere: No such file"):
        connect(closed)


def test_the_address_comes_before_the_environment(closed: RiverbedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDISCLI_AUTH", "wrong")
    connect(closed, password=SECRET)


def test_a_server_without_a_password_is_sent_none(riverbed: RiverbedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDISCLI_AUTH", SECRET)
    connect(riverbed)


def test_without_a_terminal_the_failure_says_where_to_put_the_password(closed: RiverbedServer) -> None:
    with pytest.raises(Failure, match=r"NOAUTH .*; put the password into REDISCLI_AUTH, or the name of its file"):
        connect(closed)


def test_a_wrong_password_is_not_shown(closed: RiverbedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDISCLI_AUTH", "hunter2")
    with pytest.raises(Failure, match="WRONGPASS") as caught:
        connect(closed)
    assert "hunter2" not in str(caught.value)


def test_a_terminal_asks_for_the_password_and_does_not_show_it(closed: RiverbedServer) -> None:
    with closed.client() as client:
        client.ask("AUTH", SECRET)
        client.ask("XADD", "s", "1-1", "f", "v")
    status, screen = on_terminal("stat", f"localhost:{closed.port}", typed=f"{SECRET}\n".encode(), prompt=b"Password")
    assert f"Password for localhost:{closed.port}: " in screen
    assert (status, "1 stream: 1 entry" in screen) == (0, True)
    assert SECRET not in screen.replace(f"{SECRET}\r\n", "", 1)
