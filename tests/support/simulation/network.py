"""Connections between machines, with delays, in pieces; machines can be cut off from each other.

Bytes of one direction of a connection come in order, as with TCP.  Between two machines that are parted nothing comes;
it comes when they are joined again, unless one side has given up.  A process that ends resets its connections; a
machine without power says nothing, and resets them when it is back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.simulation.loop import Loop

_DELAY_S = (0.0001, 0.002)
_LONG_DELAY_S = 0.25
_LONG_DELAYS = 0.01  # so many of all messages take long
_SPLITS = 0.1  # so many come in two pieces
WINDOW_BYTES = 64 << 10
_LOOK_S = 0.05
_STEP_S = 1e-8
_MAX_LOOKS = 2000  # a system gives up after minutes


class Network:
    """All connections of one simulation."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._listening: dict[tuple[str, int], tuple[Loop, Callable[[], asyncio.BaseProtocol]]] = {}
        self._parted: set[frozenset[str]] = set()
        self._silent: set[str] = set()
        self._transports: dict[Transport, None] = {}
        self.numbers = itertools.count(50_000)

    # -- faults --------------------------------------------------------------------------------------------------------

    def part(self, one: str, other: str) -> None:
        self._parted.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        self._parted.discard(frozenset((one, other)))
        self._go_on()

    def join_all(self) -> None:
        self._parted.clear()
        self._go_on()

    def is_parted(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._parted

    def cut(self, one: str, other: str) -> None:
        """Break all connections between two machines."""
        for transport in list(self._transports):
            if (transport.loop.name, transport.peer) == (one, other):
                transport.reset()

    def _go_on(self) -> None:
        for transport in list(self._transports):
            transport.loop.call_soon(transport.take)

    # -- machines ------------------------------------------------------------------------------------------------------

    def process_ended(self, name: str, *, is_silent: bool) -> None:
        """Nothing on the machine listens or answers any more; with `is_silent`, nobody is told."""
        self._listening = {place: found for place, found in self._listening.items() if place[0] != name}
        ended = [transport for transport in self._transports if transport.loop.name == name]
        for transport in ended:
            del self._transports[transport]
            if is_silent:
                transport.other.is_deserted = True
            else:
                transport.other.expect(RESET, self.delay())
        if is_silent:
            self._silent.add(name)

    def machine_is_back(self, name: str) -> None:
        """It resets connections that it does not know."""
        self._silent.discard(name)
        for transport in list(self._transports):
            if transport.is_deserted and transport.peer == name:
                transport.is_deserted = False
                transport.expect(RESET, self.delay())

    # -- connections ---------------------------------------------------------------------------------------------------

    def delay(self) -> float:
        if self._random.random() < _LONG_DELAYS:
            return self._random.uniform(0, _LONG_DELAY_S)
        return self._random.uniform(*_DELAY_S)

    def pieces(self, data: bytes) -> list[bytes]:
        if len(data) > 1 and self._random.random() < _SPLITS:
            at = self._random.randrange(1, len(data))
            return [data[:at], data[at:]]
        return [data]

    def listen(self, loop: Loop, factory: Callable[[], asyncio.BaseProtocol], place: tuple[str, int]) -> _Listening:
        self._listening[place] = loop, factory
        return _Listening(lambda: self._listening.pop(place, None))

    async def connect(self, loop: Loop, factory: Callable[[], Any], host: str, port: int) -> tuple[Transport, Any]:
        await asyncio.sleep(self.delay())
        for _ in range(_MAX_LOOKS):
            if not self.is_parted(loop.name, host) and host not in self._silent:
                break
            await asyncio.sleep(_LOOK_S)
        else:
            raise TimeoutError(f"{host}:{port} does not answer")
        if (host, port) not in self._listening:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        other_loop, other_factory = self._listening[host, port]
        own_place, place = (loop.name, next(self.numbers)), (host, port)
        protocol = factory()
        ours = Transport(self, loop, own_place, place)
        theirs = Transport(self, other_loop, place, own_place)
        ours.other, theirs.other = theirs, ours
        self._transports |= {ours: None, theirs: None}
        other_loop.call_soon(theirs.begin, other_factory)
        ours.set_protocol(protocol)
        protocol.connection_made(ours)
        return ours, protocol

    def forget(self, transport: Transport) -> None:
        self._transports.pop(transport, None)


class _Listening:
    def __init__(self, close: Callable[[], object]) -> None:
        self.close = close


class Address:
    """In the place of a bound socket."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)

    def fileno(self) -> int:
        return -1

    def listen(self, _backlog: int) -> None:
        """Connections come when the loop makes a server of it."""

    def close(self) -> None:
        pass


class _Marker:
    """The end of the bytes of one direction."""


RESET = _Marker()
END = _Marker()


class _Socket:
    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number


class Transport(asyncio.Transport):
    """One side of a connection."""

    other: Transport

    def __init__(self, network: Network, loop: Loop, place: tuple[str, int], peer: tuple[str, int]) -> None:
        super().__init__({"sockname": place, "peername": peer, "socket": _Socket(next(network.numbers))})
        self.loop = loop
        self.peer = peer[0]
        self.is_deserted = False  # the other machine is gone, and nobody has said so
        self.stamp: object = None  # what the sender noted beside the bytes that came last
        self._network = network
        self._protocol: Any = None
        self._is_closing = False
        self._is_over = False
        self._unsent = b""
        self._has_ended = False  # nothing more is sent
        self._in_flight = 0
        self._high = WINDOW_BYTES
        self._is_full = False  # the protocol was told to pause writing
        self._arrived: list[tuple[bytes | _Marker, object]] = []
        self._last_s = 0.0
        self._reads = True

    def begin(self, factory: Callable[[], Any]) -> None:
        if self._is_over:
            return
        self._protocol = factory()
        self._protocol.connection_made(self)
        self.take()

    # -- sending -------------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._is_closing or self._has_ended or not data:
            return
        self._unsent += bytes(data)
        self._push()
        if len(self._unsent) > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def _push(self) -> None:
        room = WINDOW_BYTES - self._in_flight
        if room > 0 and self._unsent:
            data, self._unsent = self._unsent[:room], self._unsent[room:]
            self._in_flight += len(data)
            stamp = self.loop.stamp()
            for piece in self._network.pieces(data):
                self.other.expect(piece, self._network.delay(), stamp)

    def _was_taken(self, size: int) -> None:
        """The other side has read so many bytes."""
        self._in_flight -= size
        if self._is_over:
            return
        self._push()
        if self._is_full and not self._unsent:
            self._is_full = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._finish(None)

    def write_eof(self) -> None:
        self._has_ended = True
        self.other.expect(END, self._network.delay())

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WINDOW_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def expect(self, data: bytes | _Marker, delay_s: float, stamp: object = None) -> None:
        """Bytes, or the end, are on their way here; behind what is on its way already."""
        if self.loop.is_dead:
            return
        if self._is_over:
            if isinstance(data, bytes):  # as the system answers for a process that has closed the connection
                self.other.expect(RESET, self._network.delay())
            return
        # never two at one time: asyncio does not say which of two timers comes first
        at = max(self.loop.scheduler.now + delay_s, self._last_s + _STEP_S)
        self._last_s = at
        self.loop.call_at(at, self._arrive, data, stamp)

    def _arrive(self, data: bytes | _Marker, stamp: object) -> None:
        if data is RESET and not self._network.is_parted(self.loop.name, self.peer):
            self._lose(ConnectionResetError("connection reset by peer"))
            return
        self._arrived.append((data, stamp))
        self.take()

    def take(self) -> None:
        """Hand over what has come."""
        parted = self._network.is_parted(self.loop.name, self.peer)
        while self._arrived and self._reads and not parted and not self._is_over and self._protocol is not None:
            data, self.stamp = self._arrived.pop(0)
            if isinstance(data, bytes):
                rest = self._hand_over(data)
                if rest:
                    self._arrived.insert(0, (rest, self.stamp))
                taken = len(data) - len(rest)
                self.other.loop.call_soon(self.other._was_taken, taken) if not self.other.loop.is_dead else None
            elif data is RESET:
                self._lose(ConnectionResetError("connection reset by peer"))
            elif not self._protocol.eof_received():
                self.close()

    def _hand_over(self, data: bytes) -> bytes:
        """-> what the protocol has no room for."""
        protocol = self._protocol
        if self._is_closing:
            return b""
        if isinstance(protocol, asyncio.BufferedProtocol):
            room = protocol.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            protocol.buffer_updated(size)
            return data[size:]
        protocol.data_received(data)
        return b""

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self.loop.call_soon(self.take)

    def is_reading(self) -> bool:
        return self._reads

    # -- the end -------------------------------------------------------------------------------------------------------

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
        if self._arrived:
            self.loop.call_soon(self.take)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close when everything is sent."""
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        if not self._is_over:
            self.other.expect(END, self._network.delay())
            self._end(error)

    def abort(self) -> None:
        if not self._is_over:
            self._is_closing = True
            self._unsent = b""
            self.other.expect(RESET, self._network.delay())
            self._end(None)

    def reset(self) -> None:
        """Break the connection on both sides, as something between them may."""
        for side in (self, self.other):
            side.loop.call_soon(side._lose, ConnectionResetError("connection reset by peer"))

    def _lose(self, error: Exception) -> None:
        if not self._is_over:
            self._is_closing = True
            self._unsent = b""
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._is_closing = True
        self._network.forget(self)
        if self._protocol is not None:
            self.loop.call_soon(self._protocol.connection_lost, error)
