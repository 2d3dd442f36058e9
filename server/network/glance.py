"""Reads the sockets of clients without a turn of the loop, while a long transaction keeps it from turning.

The loop reads a socket when the system says that there is something; so does this, and hands it to the same protocol.
What is read is what the loop would have read next, and the loop finds the rest.  The end of a connection, and an error,
are left to the loop, which finds them as well.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from riverbed.server.network.connection import Connection

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session

_READ_BYTES: Final = 64 << 10
_READ_S: Final = 0.003


class Glance:
    """The `Sockets` of one server, see `execution/control/beside.py`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._fds: dict[Session, int] = {}
        self._sessions: dict[int, Session] = {}
        self._unread: dict[int, None] = {}  # had something when the time of the last look was up, in order

    def begin(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            connection = cast(Connection, session.peer)
            fd = connection.fd
            if fd >= 0 and connection.is_reading and not session.must_wait:
                self._fds[session], self._sessions[fd] = fd, session
                self._poll.register(fd, select.POLLIN)

    def read(self) -> None:
        end = time.monotonic() + _READ_S
        # in the order of the system alone those at its end would never be read
        ready = [*self._unread | dict.fromkeys(fd for fd, _ in self._poll.poll(0))]
        self._unread = {}
        for number, fd in enumerate(ready):
            if time.monotonic() >= end:
                self._unread = dict.fromkeys(ready[number:])
                return
            session = self._sessions[fd]
            connection = cast(Connection, session.peer)
            if not connection.is_reading or not _read(fd, connection.receiver):
                self.leave(session)

    def leave(self, session: Session) -> None:
        fd = self._fds.pop(session, None)
        if fd is not None:
            del self._sessions[fd]
            self._unread.pop(fd, None)
            self._poll.unregister(fd)

    def end(self) -> None:
        for session in list(self._fds):
            self.leave(session)


def _read(fd: int, receiver: asyncio.BaseProtocol) -> bool:
    """Hand over what the socket has; -> whether there was something."""
    try:
        if isinstance(receiver, asyncio.BufferedProtocol):
            count = os.readv(fd, [receiver.get_buffer(-1)])
            if count:
                receiver.buffer_updated(count)
            return count > 0
        data = os.read(fd, _READ_BYTES)
    except OSError:
        return False
    if data:
        cast(asyncio.Protocol, receiver).data_received(data)
    return bool(data)
