"""One client's socket: bytes to requests, replies to bytes, and patience with neither."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, cast

from server.encode import error_line
from server.resp import RequestReader

if TYPE_CHECKING:
    from server.executor import Executor
    from server.session import Session

log = logging.getLogger("riverbed")


class Connection(asyncio.Protocol):
    """A peer.  While a client leaves its replies unread, nothing more is read from it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._stats = executor.stats
        self.address = ""
        self.local_address = ""
        self.fd = -1
        self._soft_limit_since: float | None = None
        self._may_read = True
        self._has_session = False  # nor is there one for a client that is refused, or goes before it begins

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the client in, or leave nothing of it behind."""
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._begin(self._transport)
        except OSError:  # it has gone already: the socket of a client that resets has no peer, and takes no options
            self._transport.abort()
        except Exception:
            log.exception("a connection could not begin")
            self._transport.abort()

    def _begin(self, transport: asyncio.Transport) -> None:
        """Make a session of it, as the last thing that can fail.  Raises OSError when the client has gone."""
        sock: socket.socket = transport.get_extra_info("socket")
        self.fd = sock.fileno()
        self.address = _address_text(transport, "peername")
        self.local_address = _address_text(transport, "sockname")
        config = self._executor.config
        self._reader = RequestReader(
            max_bulk_bytes=config.proto_max_bulk_len,
            max_query_bytes=config.client_query_buffer_limit,
        )
        self.session: Session = self._executor.connect(self)
        self._has_session = True
        self.session.send = transport.write
        self._reader.authenticated = self.session.authenticated

    def data_received(self, data: bytes) -> None:
        session = self.session
        size = len(data)
        session.bytes_in += size
        self._stats.bytes_in += size
        reader = self._reader
        requests = reader.feed(data)
        if requests:
            self._executor.submit(session, requests)
        if not session.authenticated or reader.error is not None:
            self._continue_reading()

    def _continue_reading(self) -> None:
        """What is beyond the common case: an AUTH that decides about the bytes behind it, bytes that are not RESP."""
        reader, session = self._reader, self.session
        while True:
            self._executor.run_now(session, [])
            reader.authenticated = session.authenticated
            if not reader.awaits_verdict:
                break
            self._executor.submit(session, reader.feed(b""))
        if reader.error is not None:
            self._give_up(reader.error.text)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_session:
            self._executor.disconnect(self.session)

    def pause_writing(self) -> None:
        """The client reads too slowly: take no further requests of it."""
        self.session.congested = True
        self._read_or_not()
        self.session.refresh_special()

    def resume_writing(self) -> None:
        self._soft_limit_since = None
        self.session.congested = False
        self._read_or_not()
        self._executor.drained(self.session)

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if self._may_read and (not self.session.congested or self.session.is_replica):
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- Peer ----------------------------------------------------------------------------------------------------------

    def close_soon(self) -> None:
        if not self.session.out and not self._executor.releases.holds(self.session):
            self._transport.close()

    def attend(self) -> None:
        if self.session.closing:
            self.close_soon()
        else:
            self._check_output_limit()

    def limit_requests(self, bulk_bytes: int, query_bytes: int) -> None:
        self._reader.max_bulk_bytes = bulk_bytes
        self._reader.max_query_bytes = query_bytes

    def set_reading(self, on: bool) -> None:
        if on is not self._may_read:
            self._may_read = on
            self._read_or_not()

    def abort(self) -> None:
        self._transport.abort()

    def output_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def query_bytes(self) -> int:
        """Bytes of a request that is not complete."""
        return self._reader.pending_bytes

    def _give_up(self, text: bytes) -> None:
        """These bytes are not RESP: answer what came before, say why, close."""
        session = self.session
        if not text:
            self._stats.query_limit_disconnections += 1
        if text:
            session.out.append(error_line(text))
        session.begin_closing()
        self._executor.flush(session)

    def _check_output_limit(self) -> None:
        if self._transport.is_closing():  # cut off already
            return
        session = self.session
        limits = self._executor.config.client_output_buffer_limit
        is_pushed_to = session.is_monitor or session.is_subscriber
        limit = limits["replica" if session.is_replica else "pubsub" if is_pushed_to else "normal"]
        size = self._transport.get_write_buffer_size() + session.held_push_bytes
        now = self._executor.clock.monotonic()
        over_soft = limit.soft and size > limit.soft
        if not over_soft:
            self._soft_limit_since = None
        elif self._soft_limit_since is None:
            self._soft_limit_since = now
        too_long = self._soft_limit_since is not None and now - self._soft_limit_since > limit.seconds
        if (limit.hard and size > limit.hard) or too_long:
            self._stats.output_limit_disconnections += 1
            self._transport.abort()


def peer_host(transport: asyncio.BaseTransport) -> str:
    """The host of a client on a TCP socket.  Raises ConnectionResetError when it has gone."""
    return _tcp_name(transport, "peername")[0]


def _tcp_name(transport: asyncio.BaseTransport, which: str) -> tuple[str, int]:
    """Host and port of `peername` or `sockname`.  Raises ConnectionResetError when there is none."""
    name = transport.get_extra_info(which)
    if name is None:
        raise ConnectionResetError(f"no {which}")
    return name[0], name[1]


def _address_text(transport: asyncio.BaseTransport, which: str) -> str:
    """`host:port`, `[v6]:port`, or `path:0` for a Unix socket."""
    sock: socket.socket = transport.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        return f"{sock.getsockname()}:0"
    host, port = _tcp_name(transport, which)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
