"""One client's socket: hands over what arrives, sends replies, is not read while too much is kept for the client."""

from __future__ import annotations

import asyncio
import logging
import select
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from riverbed.server.limits.accounts import MAX_STRANGERS_OUTPUT

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.executor import Executor
    from riverbed.server.network.leaving import Leaving

log = logging.getLogger("riverbed")

_HANG_UP: Final = getattr(select, "POLLRDHUP", 0)  # and POLLHUP, which is always told; macOS knows that one alone
_SMALL_PIECE: Final = memoryview(bytearray(4 << 10))  # filled and copied again before anything else is read


class _Receive(Protocol):
    def __call__(self, data: bytes) -> None: ...


class Connection(asyncio.Protocol):
    """A peer.  While a client leaves its replies unread, nothing more is read from it."""

    data_received: _Receive  # set with the session; no method, which would be one more call for each chunk

    def __init__(self, executor: Executor, leaving: Leaving, unix_path: str = "") -> None:
        """`unix_path` is where the server listens, for a client of the Unix socket."""
        self._executor = executor
        self._leaving = leaving
        self._stats = executor.stats
        self._unix_path = unix_path
        self.address = ""
        self._soft_limit_since: float | None = None
        self._may_read = True
        self._has_ended = False  # the client sends nothing more
        self._has_session = False  # a client that is refused, or goes before it begins, has none
        self._reads_small_pieces = False
        self._is_cut_off = False  # what was not sent is gone

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the client in, or leave nothing of it behind."""
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._begin(self._transport)
        except OSError:  # the client has gone: the socket of a client that resets has no peer, and takes no options
            self._transport.abort()
        except Exception:
            log.exception("a connection could not begin")
            self._transport.abort()

    def _begin(self, transport: asyncio.Transport) -> None:
        """Make a session for the client, as the last step that can fail.  Raises OSError when the client has gone."""
        self.address = f"{self._unix_path}:0" if self._unix_path else _address_text(*peer_name(transport))
        transport.set_write_buffer_limits(0)  # all that the kernel does not take is counted
        self.session: Session = self._executor.clients.connect(self)
        self._has_session = True
        self.data_received = partial(self._executor.receive, self.session)
        self.session.send = transport.write
        self._set_protocol(in_small_pieces=self.session.account.pool.is_pressed)

    def eof_received(self) -> bool:
        """The client has shut down its sending side, or all of it: it may still wait for replies, so stay open."""
        self._has_ended = True
        if self._has_session:
            self.session.input.end()
            self._leaving.take(self._executor.receive_end, self.session)
        return self._has_session

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_cut_off = True
        if self._has_session:
            self.session.begin_closing()
            self.session.send = _drop  # uvloop's transport refuses to be written to from now on
            self._leaving.take(self._executor.clients.disconnect, self.session)

    def pause_writing(self) -> None:
        """The client reads too slowly: take no further requests from it."""
        if not self._has_session:
            return
        self.session.congested = True
        self._read_or_not()
        self.session.refresh()
        self.session.settle()

    def resume_writing(self) -> None:
        if not self._has_session:
            return
        self._soft_limit_since = None
        self.session.congested = False
        self._read_or_not()
        self.session.settle()
        self._executor.clients.drained(self.session)

    def _read_or_not(self) -> None:
        if self._transport.is_closing() or self._has_ended:
            return
        if self._may_read and (not self.session.congested or self.session.is_replica):
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- Peer ----------------------------------------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        """Asked for rarely, and the transport makes an object to tell it; -1 when the connection is closed."""
        if self._transport.is_closing():
            return -1
        fd: int = self._transport.get_extra_info("socket").fileno()
        return fd

    @property
    def is_reading(self) -> bool:
        return self._transport.is_reading()

    @property
    def receiver(self) -> asyncio.BaseProtocol:
        """What the loop hands the bytes of the socket to."""
        transport = self._transport
        return transport if isinstance(transport, asyncio.BaseProtocol) else transport.get_protocol()

    @property
    def local_address(self) -> str:
        """Asked for rarely, so the system is asked then; a connection that is closed has none, as in Redis."""
        if self._unix_path:
            return self.address
        name = self._transport.get_extra_info("sockname")
        return "?:0" if name is None else _address_text(name[0], name[1])

    def close_soon(self) -> None:
        if not self.session.out and not self._executor.outbox.holds(self.session):
            self._transport.close()

    def attend(self) -> None:
        if self.session.closing:
            self.close_soon()
        else:
            self._check_output_limit()
            self.session.settle()

    def set_reading(self, on: bool) -> None:
        if on is not self._may_read:
            self._may_read = on
            self._read_or_not()

    def read_small_pieces(self, on: bool) -> None:
        if on is not self._reads_small_pieces and not self._transport.is_closing():
            self._transport.pause_reading()
            self._set_protocol(in_small_pieces=on)
            self._read_or_not()

    def _set_protocol(self, *, in_small_pieces: bool) -> None:
        """Set how to read, from the next time that reading begins."""
        self._reads_small_pieces = in_small_pieces
        if in_small_pieces:
            self._transport.set_protocol(_SmallPieces(self))
        else:
            self._transport.set_protocol(self)

    def abort(self) -> None:
        self._is_cut_off = True
        self._transport.abort()

    def has_hung_up(self) -> bool:
        fd = self.fd
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, _HANG_UP)
        return bool(poll.poll(0))

    def output_bytes(self) -> int:
        return 0 if self._is_cut_off else self._transport.get_write_buffer_size()

    def _check_output_limit(self) -> None:
        if self._transport.is_closing():  # cut off already
            return
        session = self.session
        limits = self._executor.config.client_output_buffer_limit
        is_pushed_to = session.is_monitor or session.subscriptions
        limit = limits["replica" if session.is_replica else "pubsub" if is_pushed_to else "normal"]
        unsent = self._transport.get_write_buffer_size()
        size = unsent + session.held_push_bytes
        now = self._executor.context.clock.monotonic()
        over_soft = limit.soft and size > limit.soft
        if not over_soft:
            self._soft_limit_since = None
        elif self._soft_limit_since is None:
            self._soft_limit_since = now
        is_strange = not session.authenticated and unsent > MAX_STRANGERS_OUTPUT
        too_long = self._soft_limit_since is not None and now - self._soft_limit_since > limit.seconds
        if (limit.hard and size > limit.hard) or too_long or is_strange:
            self._stats.output_limit_disconnections += 1
            if not is_strange:  # a line for each of those would fill the disk
                text = "%s %s is cut off: it has not read %d bytes, more than client-output-buffer-limit allows"
                log.warning(text, "replica" if session.is_replica else "client", self.address, size)
            self._transport.abort()


class _SmallPieces(asyncio.BufferedProtocol):
    """The same connection, read a little at a time: libuv takes up to 8 MB from a socket in one turn otherwise."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SMALL_PIECE

    def buffer_updated(self, nbytes: int) -> None:
        connection = self._connection
        connection.data_received(bytes(_SMALL_PIECE[:nbytes]))
        if nbytes == len(_SMALL_PIECE):  # there may be more
            connection.session.settle()


def _drop(data: object) -> None:
    """Send nothing: the connection is gone."""


def peer_name(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Host and port of a client on a TCP socket.  Raises ConnectionResetError when it has gone."""
    name = transport.get_extra_info("peername")
    if name is None:
        raise ConnectionResetError("no peername")
    return name[0], name[1]


def _address_text(host: str, port: int) -> str:
    """`host:port` or `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
