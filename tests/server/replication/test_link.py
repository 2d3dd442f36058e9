"""What a primary sends in the handshake, which may be anything."""

from __future__ import annotations

import asyncio
import time

import pytest

from riverbed.server.replication.link import FullSyncHead, Introduction, Link, LinkError
from tests.support.effort import measured

ID = "a" * 40


class User:
    """Notes what happens on a link."""

    def __init__(self) -> None:
        self.received = b""
        self.continued = self.store_id = ""
        self.lost: LinkError | None = None

    def link_made(self) -> None:
        pass

    def link_continues(self, replication_id: str, store_id: str) -> None:
        self.continued, self.store_id = replication_id, store_id

    def link_begins_anew(self, head: FullSyncHead) -> None:
        pass

    def link_received(self, data: bytes) -> None:
        self.received += data

    def link_lost(self, error: LinkError) -> None:
        self.lost = error


class Transport(asyncio.Transport):
    """Swallows what is sent."""

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def new_link() -> tuple[Link, User]:
    user = User()
    link = Link(user, Introduction(6379, "", "", b"", ID, 0), time.monotonic)
    link.connection_made(Transport())
    return link, user


def test_a_primary_may_tell_its_store() -> None:
    for told in ("", "b" * 40):
        link, user = new_link()
        link.data_received(ANSWERS.removesuffix(b"\r\n") + (b" %b" % told.encode() if told else b"") + b"\r\n")
        assert (user.continued, user.store_id, user.lost) == (ID, told, None)
    link, user = new_link()
    link.data_received(ANSWERS.removesuffix(b"\r\n") + b" something\r\n")
    assert "continues without an id" in str(link._reason)


ANSWERS = b"+PONG\r\n" + b"+OK\r\n" * 3 + b"+CONTINUE %b\r\n" % ID.encode()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("pause", [b"", b"\n", b"\r\n\n"])
def test_what_follows_the_handshake_is_passed_on_whole(size: int, pause: bytes) -> None:
    link, user = new_link()
    data = ANSWERS.replace(b"+", pause + b"+") + b"\n\r\nlog"
    for at in range(0, len(data), size):
        link.data_received(data[at : at + size])
    assert user.continued == ID
    assert user.received == b"\n\r\nlog"


def test_a_flood_of_empty_lines_takes_no_time() -> None:
    link, user = new_link()
    with measured() as effort:
        for _ in range(20):
            link.data_received(b"\n" * (1 << 20))
        link.data_received(ANSWERS)
    assert user.continued == ID
    assert effort.units < 100  # a copy for each would take hours


def test_a_line_without_an_end_is_refused() -> None:
    link, _ = new_link()
    link.data_received(b"+" * 5000)
    assert link.is_over
