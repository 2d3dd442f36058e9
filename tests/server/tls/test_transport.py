"""One TLS connection without a socket: what its user is handed, and when."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Any

import pytest

from riverbed.server.tls.handshakes import Handshakes
from riverbed.server.tls.transport import Bios, TlsTransport
from tests.support.certificates import Certificates
from tests.support.ticks import in_loop
from tests.support.tls import client_context

PIECE = 4


class Socket(asyncio.Transport):
    """What the server's end writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_read = True
        self.is_cut_off = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_cut_off

    def abort(self) -> None:
        self.is_cut_off = True


class User(asyncio.BufferedProtocol):
    """A client that is read in small pieces, and no further behind each of them."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(PIECE))
        self.taken = b""
        self.has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.taken += bytes(self._buffer[:nbytes])
        self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        return True


async def connected(certificates: Certificates, user: User, sock: Socket) -> tuple[TlsTransport, ssl.SSLObject, Any]:
    """The server's end, the client's, and where the records of the client come out."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server.cert, certificates.server.key)
    transport = TlsTransport(Bios(), Handshakes(time.monotonic), context, lambda: user, is_server=True)
    transport.connection_made(sock)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost")
    for _ in range(5):
        incoming.write(sock.sent)
        sock.sent = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        if outgoing.pending:
            deliver(transport, outgoing.read())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return transport, client, outgoing


def deliver(transport: TlsTransport, records: bytes) -> None:
    """Have these bytes come from the socket."""
    transport.get_buffer(-1)[: len(records)] = records
    transport.buffer_updated(len(records))


def test_no_bytes_of_the_socket_may_overtake_those_that_are_kept(certificates: Certificates) -> None:
    async def body() -> None:
        user, sock = User(), Socket()
        transport, client, outgoing = await connected(certificates, user, sock)
        client.write(b"abcdefghij")
        deliver(transport, outgoing.read())
        taken = [user.taken]
        while not transport.is_reading():
            assert not sock.is_read
            transport.resume_reading()
            assert not transport.is_reading() or user.taken == b"abcdefghij"
            await asyncio.sleep(0)
            taken.append(user.taken)
        assert taken == [b"abcd", b"abcdefgh", b"abcdefghij", b"abcdefghij"]
        assert sock.is_read

    in_loop(body())


def test_the_end_is_told_behind_the_last_piece_that_was_kept(certificates: Certificates) -> None:
    """Also when that piece pauses reading once more: no other call would tell it."""

    async def body() -> None:
        user, sock = User(), Socket()
        transport, client, outgoing = await connected(certificates, user, sock)
        client.write(b"a" * 2 * PIECE)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.unwrap()
        deliver(transport, outgoing.read())
        assert (user.taken, user.has_ended) == (b"a" * PIECE, False)
        transport.resume_reading()
        await asyncio.sleep(0)
        assert (user.taken, user.has_ended) == (b"a" * 2 * PIECE, True)

    in_loop(body())


def test_a_connection_whose_kept_bytes_are_lost_is_cut_off(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next would be taken for requests, as if it followed what came before."""

    def fail(nbytes: int) -> None:
        raise MemoryError

    async def body() -> None:
        errors: list[Exception] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        user, sock = User(), Socket()
        transport, client, outgoing = await connected(certificates, user, sock)
        client.write(b"a" * 2 * PIECE)
        deliver(transport, outgoing.read())
        monkeypatch.setattr(user, "buffer_updated", fail)
        transport.resume_reading()
        await asyncio.sleep(0)
        assert list(map(type, errors)) == [MemoryError]
        assert sock.is_cut_off

    in_loop(body())


class KeyChanges:
    """OpenSSL in the midst of records that have no data: it takes them all in, for a while, and wants more."""

    def __init__(self, bios: Bios) -> None:
        self._incoming = bios.incoming

    def read(self, size: int) -> bytes:
        self._incoming.read()
        time.sleep(0.003)
        raise ssl.SSLWantReadError


def test_records_without_data_take_turns_and_come_to_an_end(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        user, sock = User(), Socket()
        transport, client, outgoing = await connected(certificates, user, sock)
        tls = transport._tls
        for _ in range(2):
            monkeypatch.setattr(transport, "_tls", KeyChanges(transport._bios))
            for _ in range(8):
                deliver(transport, b"x" * 4096)
                assert not sock.is_read and not sock.is_cut_off
                await asyncio.sleep(0)
                assert sock.is_read
            monkeypatch.setattr(transport, "_tls", tls)
            client.write(b"abcd")
            deliver(transport, outgoing.read())  # begins the count again
            transport.resume_reading()
        assert user.taken == b"abcd" * 2
        monkeypatch.setattr(transport, "_tls", KeyChanges(transport._bios))
        for _ in range(10):
            deliver(transport, b"x" * 4096)
        assert sock.is_cut_off

    in_loop(body())


def test_a_record_may_come_in_small_pieces(certificates: Certificates) -> None:
    async def body() -> None:
        user, sock = User(), Socket()
        transport, client, outgoing = await connected(certificates, user, sock)
        client.write(b"a" * (16 << 10))
        records = outgoing.read()
        for at in range(0, len(records), 100):
            assert user.taken == b""
            deliver(transport, records[at : at + 100])
            await asyncio.sleep(0)
        assert user.taken == b"a" * PIECE and not sock.is_cut_off

    in_loop(body())
