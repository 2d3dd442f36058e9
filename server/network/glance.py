"""Reads the sockets of clients without a turn of the loop, while a long transaction keeps it from turning.

The loop reads a socket when the system says that there is something; so does this, and hands it to the same protocol.
What is read is what the loop would have read next, and the loop finds the rest.  The end of a connection, and an error,
are left to the loop, which finds them as well.

Sockets stay known from one transaction to the next: to get to know one takes up to 10 us, and there may be thousands.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from riverbed.server.network.connection import Connection

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session

_READ_BYTES: Final = 64 << 10
_READ_S: Final = 0.003
# Of each look, for sockets that are not known yet.
_LEARN_S: Final = 0.001


class Glance:
    """The `Sockets` of one server, see `execution/control/beside.py`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._fds: dict[Session, int] = {}
        self._sessions: dict[int, Session] = {}
        self._unknown: list[Session] = []  # the next one last
        self._unread: dict[int, None] = {}  # had something when the time of the last look was up, in order

    def begin(self, sessions: Iterable[Session]) -> None:
        known = self._fds
        self._unknown = [session for session in sessions if session not in known]
        self._unknown.reverse()

    def read(self) -> None:
        begun = time.monotonic()
        self._learn(begun + _LEARN_S)
        end = begun + _READ_S
        # in the order of the system alone those at its end would never be read
        ready = [*self._unread | dict.fromkeys(key.fd for key, _ in self._selector.select(0))]
        self._unread = {}
        for number, fd in enumerate(ready):
            if time.monotonic() >= end:
                self._unread = dict.fromkeys(ready[number:])
                return
            session = self._sessions[fd]
            connection = cast(Connection, session.peer)
            if session.must_wait or not connection.is_reading or not _read(fd, connection):
                self.leave(session)

    def _learn(self, end: float) -> None:
        """Get to know the next clients that may be read."""
        while self._unknown:
            session = self._unknown.pop()
            connection = cast(Connection, session.peer)
            fd = -1 if session.must_wait or not connection.is_reading else connection.fd
            if fd >= 0:
                if fd in self._sessions:  # of one that has just gone
                    self.leave(self._sessions[fd])
                self._fds[session], self._sessions[fd] = fd, session
                self._selector.register(fd, selectors.EVENT_READ)
            if time.monotonic() >= end:
                return

    def leave(self, session: Session) -> None:
        """Read this client no further in this transaction; forget one that has gone."""
        fd = self._fds.pop(session, None)
        if fd is not None:
            del self._sessions[fd]
            self._unread.pop(fd, None)
            self._selector.unregister(fd)

    def end(self) -> None:
        self._unknown.clear()
        self._unread.clear()


def _read(fd: int, connection: Connection) -> bool:
    """Hand over what the socket has; -> whether there was something.  Where that fails the client is cut off."""
    receiver = connection.receiver
    data, count = b"", 0
    try:
        if isinstance(receiver, asyncio.BufferedProtocol):
            count = os.readv(fd, [receiver.get_buffer(-1)])
        else:
            data = os.read(fd, _READ_BYTES)
    except OSError:
        return False
    try:
        if data:
            cast(asyncio.Protocol, receiver).data_received(data)
        elif count:
            cast(asyncio.BufferedProtocol, receiver).buffer_updated(count)
    except Exception:  # as the loop does: what comes behind lost bytes may be taken for requests
        connection.abort()
        raise
    return bool(data) or count > 0
