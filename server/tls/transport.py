"""One TLS connection: a protocol to the socket below it, a transport to the user above it.

            connection_made ---> HANDSHAKE ----------> OPEN -------> CLOSED
                                 |  first byte, step   |  user.connection_made, data, end
                                 '- failed, late: the user is never made, or told of the loss alone

    user         write(plain)   data_received(plain)     pause_writing, resume_writing    get_write_buffer_size
                    |                   ^                            ^                               |
    SSLObject    records out       records in                        |                               |
                    v                   |                            |                               v
    socket       write(records)    buffer_updated              all that the kernel does not take is counted

What the user writes is made records at once, so nothing is buffered here, and limits and counts are those of the
socket.  asyncio's own TLS keeps buffers of its own that its counts leave out, knows no half-closed connection, and
takes 256 kB for each connection in uvloop.  Here a connection keeps an unfinished record, 17 kB at most, and what was
read of one record while the user does not want to read.

OpenSSL takes 46 kB for a connection whose handshake it has begun, and 16 kB more while a record is unfinished.  So
during the handshake it is given whole records alone: a stranger that sends its hello a byte at a time, or half of it,
costs these bytes.  It allocates what a message announces, up to 131 kB, and takes 4 kB and a millisecond for each
certificate of a chain.  So a client that is accepted has no longer hello than `_MAX_HANDSHAKE_BYTES`, nor a longer
handshake: that is room for chains of the largest certificates in use.

All connections of a `Bios` share two BIOs: each call moves its bytes in, and out again before it ends.  A BIO never
gives back the memory that it once needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.tls.handshakes import Handshakes

_RECORD_BYTES: Final = 16 << 10  # the most that one record has
_READ_BYTES: Final = 16 << 10
_SMALL_READ_BYTES: Final = 4 << 10
_HANDSHAKE_RECORD: Final = 0x16
_HEADER_BYTES: Final = 5  # type:u8 version:u16 length:u16
_MESSAGE_HEADER_BYTES: Final = 4  # type:u8 length:u24
_MAX_HANDSHAKE_BYTES: Final = 16 << 10
_MAX_IN_RECORD: Final = _RECORD_BYTES + 2048  # a longer one is not waited for: OpenSSL refuses it by its header
# A peer may change keys at any time, which costs 10 us or more for 27 bytes, and needs it every few gigabytes.  So a
# piece of what was read may take long: the other connections have their turn then, and few pieces may have no data.
_SLOW_S: Final = 0.002
_MAX_BARREN_BYTES: Final = 2 * _MAX_IN_RECORD
_TOO_LONG: Final = f"it has more than {_MAX_HANDSHAKE_BYTES >> 10} kB, or begins with a few bytes"
_NO_CERTIFICATE: Final = "the session has no certificate, and one is demanded now"


class Bios:
    """The buffers that the connections of one loop share."""

    def __init__(self) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.large = memoryview(bytearray(_READ_BYTES))
        self.small = self.large[:_SMALL_READ_BYTES]


class _State(enum.Enum):
    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """A connection, accepted (`is_server`) or made by us.  `make_user` is called once the handshake is over."""

    def __init__(
        self,
        bios: Bios,
        handshakes: Handshakes,
        context: ssl.SSLContext,
        make_user: Callable[[], asyncio.BaseProtocol],
        *,
        is_server: bool,
        refuses: Callable[[], bool] = lambda: False,
    ) -> None:
        """`refuses`: whether a connection that was just accepted is to be closed at once."""
        super().__init__()
        self.address = ""
        self._bios = bios
        self._handshakes = handshakes
        self._make_user = make_user
        self._is_server = is_server
        self._refuses = refuses
        self._state = _State.HANDSHAKE
        self._context = context
        self._tls: ssl.SSLObject  # made by the first step: a thousand clients may be accepted in one turn
        self._buffer = bios.small
        self._user: asyncio.Protocol | asyncio.BufferedProtocol | None = None
        self._unread = b""  # records during the handshake, then what the user has not taken
        self._has_begun = False  # something has arrived
        self._is_shaking = False  # the handshake has begun
        self._handshake_bytes = 0  # of it, so far
        self._barren_bytes = 0  # that have come since there was something to hand over
        self._is_paused = False
        self._is_congested = False
        self._has_ended = False  # the peer sends nothing more
        self._told_end = False
        self._is_closing = False
        self._error: Exception | None = None

    # -- the handshake -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if name else "?:0"
        self._socket.set_write_buffer_limits(0)
        if self._refuses():
            self._socket.abort()
            return
        self._handshakes.begin(self)
        if not self._is_server:
            self._handshakes.step_soon(self)

    def shake(self) -> None:
        """Take a step of the handshake with what has arrived."""
        bios = self._bios
        if not self._is_shaking:
            if self._is_server and not _begins_shortly(self._unread):
                self._fail_handshake(_TOO_LONG)
                return
            self._is_shaking = True
            self._tls = self._context.wrap_bio(bios.incoming, bios.outgoing, server_side=self._is_server)
        taken = whole = _whole_bytes(self._unread)
        if self._is_server:  # what is behind may be of requests already
            taken = min(whole, _MAX_HANDSHAKE_BYTES - self._handshake_bytes)
        records, self._unread = self._unread[:taken], self._unread[taken:]
        self._handshake_bytes += taken
        bios.incoming.write(records)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if taken < whole:
                self._fail_handshake(_TOO_LONG)
            else:
                self._socket.resume_reading()
        except ssl.SSLError as error:
            self._take_in()
            self._flush()  # the alert that says what is wrong
            self._fail_handshake(_reason(error))
        else:
            self._unread = self._take_in() + self._unread
            self._flush()
            if self._lacks_certificate():
                self._fail_handshake(_NO_CERTIFICATE)
            else:
                self._open()

    def _lacks_certificate(self) -> bool:
        """Whether the session that was resumed was begun without a certificate, when none was demanded."""
        is_demanded = self._is_server and self._context.verify_mode is ssl.CERT_REQUIRED
        return is_demanded and self._tls.getpeercert(binary_form=True) is None

    def _open(self) -> None:
        self._handshakes.end(self)
        self._state = _State.OPEN
        self._is_paused = False
        user = self._make_user()
        self.set_protocol(user)
        user.connection_made(self)
        if self._is_congested and not self.is_closing():
            self.pause_writing()
        if self._state is not _State.OPEN or self.is_closing():
            return
        records, self._unread = self._unread, b""
        if records:
            self._received(records)
        if self.is_reading():
            self._socket.resume_reading()

    def give_up(self) -> None:
        """Close without an answer; the handshake is late, or not wanted any more."""
        self._fail(ConnectionError("the TLS handshake took too long"))

    def _fail_handshake(self, reason: str) -> None:
        self._handshakes.failed(self.address, reason)
        self._error = ConnectionError(f"the TLS handshake failed: {reason}")
        self._handshakes.end(self)
        self._socket.close()  # behind the alert

    # -- the socket's protocol -----------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is _State.OPEN:
            self._received(self._buffer[:nbytes])
        elif self._state is _State.HANDSHAKE and self._error is None:
            self._shake_with(bytes(self._buffer[:nbytes]))

    def _shake_with(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            if self._is_server and data[0] != _HANDSHAKE_RECORD:
                self._handshakes.spoke_plainly(self.address)
                self.give_up()
                return
        self._unread += data
        if _whole_bytes(self._unread):
            self._socket.pause_reading()  # nothing more is kept for a connection than one step needs
            self._handshakes.step_soon(self)

    def _received(self, records: bytes | memoryview) -> None:
        """Open records and hand over what is in them."""
        if self._has_ended:
            self._fail(ConnectionError("the peer has sent something behind its end"))
            return
        begun = time.perf_counter()
        incoming, read = self._bios.incoming, self._tls.read
        incoming.write(records)
        parts: list[bytes] = []
        try:
            while incoming.pending:
                part = read(_RECORD_BYTES)
                if not part:
                    self._has_ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # the same end, when we have sent ours
            self._has_ended = True
        except ssl.SSLError as error:
            self._take_in()
            self._flush()
            self._fail(error)
            return
        if self._has_ended:
            self._take_in()
        if self._bios.outgoing.pending:
            self._flush()
        self._barren_bytes = 0 if parts else self._barren_bytes + len(records)
        if time.perf_counter() - begun > _SLOW_S:
            self._socket.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
        if parts:
            self._hand_over(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._has_ended:
            self._tell_end()
        elif self._barren_bytes > _MAX_BARREN_BYTES:
            self._fail(ConnectionError("the peer sends records without data"))

    def _hand_over(self, data: bytes) -> None:
        user = self._user
        if isinstance(user, asyncio.Protocol):
            user.data_received(data)
            return
        at = 0
        while at < len(data) and not self.is_closing():
            if self._is_paused:
                self._unread = data[at:]
                return
            if not isinstance(self._user, asyncio.BufferedProtocol):
                self._hand_over(data[at:])
                return
            place = cast(memoryview, self._user.get_buffer(-1))
            count = min(len(place), len(data) - at)
            place[:count] = data[at : at + count]
            self._user.buffer_updated(count)
            at += count

    def _go_on(self) -> None:
        """Hand over what was kept, and then read on."""
        if not self._takes_data():
            return
        data, self._unread = self._unread, b""
        if data:
            try:
                self._hand_over(data)
            except Exception as error:  # as the loop does: what comes behind lost bytes may be taken for requests
                self._fail(error)
                raise
        if self._has_ended:
            self._tell_end()  # also when the last piece has paused reading: no other call would
        elif self.is_reading():
            self._socket.resume_reading()

    def eof_received(self) -> bool:
        """The peer has shut down its side without a word of TLS, as many clients do: it is an end like the other."""
        if self._state is not _State.OPEN:
            if self._error is None and self._has_begun:
                self._handshakes.failed(self.address, "the peer has closed the connection")
            return False
        self._has_ended = True
        self._tell_end()
        return True

    def _tell_end(self) -> None:
        if self._told_end or self._unread or self._user is None:
            return
        self._told_end = True
        if not self._user.eof_received():
            self.close()

    def pause_writing(self) -> None:
        self._is_congested = True
        if self._user is not None:
            self._user.pause_writing()

    def resume_writing(self) -> None:
        self._is_congested = False
        if self._user is not None:
            self._user.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshakes.end(self)
        was_open, user, error = self._state is _State.OPEN, self._user, self._error or exc
        self._state = _State.CLOSED
        # the user refers to us; without these it is not garbage before the next collection
        self._user = None
        self._unread = b""
        if self._is_shaking:
            del self._tls
        if was_open and user is not None:
            user.connection_lost(error)
        elif not self._is_server:
            self._make_user().connection_lost(error)

    # -- the user's transport ------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_closing or self._state is not _State.OPEN:
            return
        if 0 < len(data) <= _RECORD_BYTES:
            self._tls.write(data)
            self._socket.write(self._bios.outgoing.read())
        elif data:
            self._write_long(data)

    def _write_long(self, data: Any) -> None:
        """Write more than a record, a record at a time, so that the BIO stays small."""
        view, records = memoryview(data), []
        for at in range(0, len(view), _RECORD_BYTES):
            self._tls.write(cast(bytes, view[at : at + _RECORD_BYTES]))
            records.append(self._bios.outgoing.read())
        self._socket.write(b"".join(records))

    def write_eof(self) -> None:
        """Tell the peer that nothing more comes; it may go on sending."""
        if self._state is not _State.OPEN:
            return
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()  # fails for want of the peer's own end, which may come much later
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self.is_closing():
            return
        self.write_eof()
        self._is_closing = True
        self._socket.close()

    def abort(self) -> None:
        self._is_closing = True
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._socket.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        if not self.is_closing():
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._unread:
            asyncio.get_running_loop().call_soon(self._go_on)
        elif not self.is_closing():
            self._socket.resume_reading()

    def is_reading(self) -> bool:
        """Whether bytes of the socket may be handed over: none may overtake those that are kept."""
        return self._takes_data() and not self._unread

    def _takes_data(self) -> bool:
        return self._state is _State.OPEN and not self._is_paused and not self.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._user = cast(asyncio.Protocol, protocol)
        self._buffer = self._bios.small if isinstance(protocol, asyncio.BufferedProtocol) else self._bios.large

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._user is not None
        return self._user

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing to do: the user is paused while the kernel does not take everything."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _take_in(self) -> bytes:
        """Take what the last call left of the bytes that came in."""
        return self._bios.incoming.read()

    def _flush(self) -> None:
        """Send what the last call made."""
        data = self._bios.outgoing.read()
        if data and not self._socket.is_closing():
            self._socket.write(data)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._handshakes.end(self)
        self._is_closing = True
        self._socket.abort()


def _whole_bytes(data: bytes) -> int:
    """How many bytes the whole records at the beginning of `data` have; all of it when a record is too long."""
    at = 0
    while len(data) >= at + _HEADER_BYTES:
        length = int.from_bytes(data[at + 3 : at + _HEADER_BYTES], "big")
        if length > _MAX_IN_RECORD:
            return len(data)
        if len(data) < at + _HEADER_BYTES + length:
            break
        at += _HEADER_BYTES + length
    return at


def _begins_shortly(data: bytes) -> bool:
    """Whether the handshake that `data` begins has a hello of a usual length, which its first record announces."""
    message = data[_HEADER_BYTES:][: int.from_bytes(data[3:_HEADER_BYTES], "big")]
    announced = int.from_bytes(message[1:_MESSAGE_HEADER_BYTES], "big")
    return len(message) >= _MESSAGE_HEADER_BYTES and announced <= _MAX_HANDSHAKE_BYTES


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()
