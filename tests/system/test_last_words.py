"""A page of the tables that ends the process does so once: the next start looks for it, and makes the tables again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import StartRiverbed
from tests.support.servers import RiverbedServer, StartError

pytestmark = pytest.mark.slow

PAGE = 4096
ENTRIES = 30_000
LAST_WORDS = "last-words"


def fill(server: RiverbedServer) -> bytes:
    """More than a start walks over by itself, in a few pages of many entries; -> the reply of XRANGE."""
    with server.client() as client:
        for first in range(0, ENTRIES, 1000):
            numbers = range(first, first + 1000)
            client.pipeline([("XADD", "s", f"{number + 1}-0", "v", b"%200d" % number) for number in numbers])
        assert client.ask("SAVE") == b"+OK\r\n"
        return client.ask("XRANGE", "s", "-", "+")


def zero_a_page(data: Path) -> None:
    """One in which entries of the middle are, as a disk may that has lost it, and what earlier commits left of it."""
    content = bytearray(data.read_bytes())
    at = 0
    while (at := content.find(b"%200d" % (ENTRIES // 2), at)) >= 0:
        at = at // PAGE * PAGE
        content[at : at + PAGE] = bytes(PAGE)
    data.write_bytes(content)


@pytest.mark.parametrize("repairs", ["yes", "no"])
def test_a_page_that_ended_the_server_is_found_by_the_next_start(start_riverbed: StartRiverbed, repairs: str) -> None:
    server = start_riverbed(options={"auto-repair": repairs})
    entries = fill(server)
    server.stop()
    words = server.directory / LAST_WORDS
    assert words.read_bytes() == b""
    zero_a_page(server.directory / "state" / "data.mdb")
    server.start()
    with server.client() as client, pytest.raises(ConnectionError):
        client.ask("XRANGE", "s", "-", "+")
    assert server.wait_ended() == -signal.SIGABRT
    assert words.read_bytes().startswith(b"Fatal Python error: Aborted")

    if repairs == "no":
        with pytest.raises(StartError, match="riverbed check --repair"):
            server.start()
        server.options["auto-repair"] = "yes"
    server.start()
    log = server.log_text()
    assert "a fatal error ended the server before, and its tables were looked through: Fatal Python error" in log
    assert "made the tables again" in log
    assert words.read_bytes() == b""
    with server.client() as client:
        assert client.ask("XRANGE", "s", "-", "+") == entries
