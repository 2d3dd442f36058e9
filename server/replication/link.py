"""The connection to our primary: the handshake, line by line, and then bytes.

    PING   [AUTH]   REPLCONF listening-port  [ip-address]  capa   REPLCONF riverbed   PSYNC
                                                                                        |
              +CONTINUE id [store-id]          the log from there on  <-----------------+
              +FULLRESYNC id start end base-bytes command-bytes [store-id]
                                               the base, then the log from `start` on

`REPLCONF capa riverbed-store` asks for the store's id, which older versions do not send.
`REPLCONF riverbed 1` asks for the log's bytes as they are.  A real Redis refuses it, and is
recognised by that: its snapshots are RDB files, which cannot be read here.  The link does not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from riverbed.store.format.log_lines import encode_command

# A replica with this capability is sent the store's id as well, and not only the replication id.
STORE_CAPABILITY: Final = b"riverbed-store"
_MAX_LINE_BYTES: Final = 4096
_FULL = re.compile(r"\+FULLRESYNC ([0-9a-f]{40}) (\d{1,18}) (\d{1,18}) (\d{1,18}) (\d{1,18})(?: ([0-9a-f]{40}))?")
_CONTINUE = re.compile(r"\+CONTINUE ([0-9a-f]{40})(?: ([0-9a-f]{40}))?")
FOREIGN: Final = "the primary is a Redis, whose snapshots cannot be read here: use `riverbed import` to copy from it"


class LinkError(Exception):
    """The primary refuses us, or we cannot follow it.  With `is_lasting`, trying again soon is of no use.

    `answer` is how it refuses PSYNC, word for word, for programs: `reason` lacks the password, which may be a part.
    """

    def __init__(self, reason: str, *, is_lasting: bool = False, answer: str = "") -> None:
        super().__init__(reason)
        self.is_lasting = is_lasting
        self.answer = answer


class RefusedError(LinkError):
    """The primary has answered, but does not let us follow it."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What we send a primary about ourselves, and what we ask for: the log of `replication_id` from `offset` on.

    With `takes_over`, the other server is our replica, and is to be our primary from then on; when it `gives_up_rest`,
    also if it lacks something that is here.
    """

    port: int
    address: str
    user: str
    password: bytes = field(repr=False)
    replication_id: str
    offset: int
    takes_over: bool = False
    gives_up_rest: bool = False


@dataclass(frozen=True, slots=True)
class FullSyncHead:
    """What a full sync announces: the offsets where the log begins and where it ended then, and the base's size.

    `command_bytes` of the base's bytes are commands; `store_id` is empty when the primary does not send it.
    """

    replication_id: str
    start: int
    end: int
    base_bytes: int
    command_bytes: int
    store_id: str = ""

    @property
    def total_bytes(self) -> int:
        """The bytes that come at least, up to where the log ended: lines between the commands come as well."""
        return self.base_bytes + self.end - self.start


class LinkUser(Protocol):
    """The owner of a link, called when something happens on it.  `link_lost` is the last call."""

    def link_made(self) -> None:
        """The connection is there, and the handshake begins."""

    def link_continues(self, replication_id: str, store_id: str) -> None:
        """The primary sends the log from where we were; `store_id` is empty when the primary does not send it."""

    def link_begins_anew(self, head: FullSyncHead) -> None:
        """The primary sends a full sync."""

    def link_received(self, data: bytes) -> None: ...

    def link_lost(self, error: LinkError) -> None: ...


class Link(asyncio.Protocol):
    """One connection to the primary."""

    def __init__(self, user: LinkUser, introduction: Introduction, monotonic: Callable[[], float]) -> None:
        self.heard_s = monotonic()
        self._user = user
        self._introduction = introduction
        self._monotonic = monotonic
        self._transport: asyncio.Transport | None = None
        self._lines = b""
        self._steps: Iterator[bytes] | None = self._handshake()
        self._reply = ""
        self._reason: LinkError | None = None
        self._reading = True
        self.has_asked_to_take_over = False

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._reason is not None:
            self._transport.abort()
            return
        self._user.link_made()
        self._step("")

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._monotonic()
        if not self._is_shaking_hands():
            self._user.link_received(data)
            return
        # an empty line says that the answer takes time
        self._lines = (self._lines + data).lstrip(b"\r\n")
        while self._is_shaking_hands() and not self.is_over:
            line, end, rest = self._lines.partition(b"\n")
            if not end:
                if len(line) > _MAX_LINE_BYTES:
                    self.fail(LinkError("the primary's answer is no line"))
                return
            self._step(line.rstrip(b"\r").decode("latin-1"))
            # behind the last line comes the log or a base, which may begin with anything
            self._lines = rest.lstrip(b"\r\n") if self._is_shaking_hands() else rest
        if not self.is_over and self._lines:
            data, self._lines = self._lines, b""
            self._user.link_received(data)

    def _is_shaking_hands(self) -> bool:
        return self._steps is not None

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or LinkError(f"the primary closed the link{f': {exc}' if exc else ''}")
        self._reason = reason
        self._user.link_lost(reason)

    # -- what the user does --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def set_reading(self, on: bool) -> None:
        """Read from the primary, or pause reading."""
        if self._transport is not None and not self._transport.is_closing() and on is not self._reading:
            self._reading = on
            if on:
                self.heard_s = self._monotonic()  # we caused the silence
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    @property
    def is_reading(self) -> bool:
        return self._reading

    @property
    def is_over(self) -> bool:
        return self._reason is not None

    def fail(self, reason: LinkError) -> None:
        """Give the link up; `link_lost` follows."""
        if self._reason is None:
            self._reason = reason
            if self._transport is not None:
                self._transport.abort()

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _step(self, reply: str) -> None:
        assert self._steps is not None
        self._reply = reply
        try:
            request = next(self._steps, None)
        except LinkError as error:
            self.fail(error)
            return
        if request is None:
            self._steps = None
        else:
            self.send(request)

    def _handshake(self) -> Iterator[bytes]:
        """Yields what is sent; `_reply` is the line that came back.  Raises RefusedError."""
        said = self._introduction
        yield encode_command([b"PING"])
        if not self._reply.startswith(("+PONG", "-NOAUTH", "-NOPERM", "-ERR operation not permitted")):
            raise RefusedError(f"the primary answers PING with {self._answer()!r}")
        if said.password:
            words = [b"AUTH", said.user.encode(), said.password] if said.user else [b"AUTH", said.password]
            yield encode_command(words)
            if not self._reply.startswith("+"):
                raise RefusedError(f"the primary does not take masterauth: {self._answer()}")
        elif self._reply.startswith("-NOAUTH"):
            raise RefusedError("the primary wants a password, and masterauth is empty")
        yield encode_command([b"REPLCONF", b"listening-port", b"%d" % said.port])
        if self._reply.startswith("-NOAUTH"):
            raise RefusedError("the primary wants a password, and masterauth is empty")
        if said.address:
            yield encode_command([b"REPLCONF", b"ip-address", os.fsencode(said.address)])
        yield encode_command([b"REPLCONF", b"capa", b"eof", b"capa", b"psync2", b"capa", STORE_CAPABILITY])
        yield encode_command([b"REPLCONF", b"riverbed", b"1"])
        if not self._reply.startswith("+OK"):
            is_other_format = "format" in self._reply
            reason = f"the primary is another version of Riverbed: {self._answer()}" if is_other_format else FOREIGN
            raise RefusedError(reason, is_lasting=True)
        words = [b"PSYNC", said.replication_id.encode(), b"%d" % (said.offset + 1)]
        if said.takes_over:
            words += [b"FAILOVER", b"FORCE"] if said.gives_up_rest else [b"FAILOVER"]
        self.has_asked_to_take_over = said.takes_over
        yield encode_command(words)
        self._begin(self._reply)

    def _answer(self) -> str:
        """The primary's answer, for people.  A server of another kind may quote the password that it was given."""
        password = self._introduction.password.decode("latin-1")
        return (self._reply.replace(password, "(redacted)") if password else self._reply)[:200]

    def _begin(self, reply: str) -> None:
        full = _FULL.fullmatch(reply)
        if full is not None:
            start, end, base_bytes = int(full[2]), int(full[3]), int(full[4])
            if end < start:
                raise RefusedError(f"the primary announces a log that ends before it begins: {self._answer()}")
            head = FullSyncHead(full[1], start, end, base_bytes, int(full[5]), full[6] or "")
            self._user.link_begins_anew(head)
        elif reply.startswith("+CONTINUE "):
            continued = _CONTINUE.fullmatch(reply.rstrip())
            if continued is None:
                raise RefusedError(f"the primary continues without an id: {self._answer()!r}")
            self._user.link_continues(continued[1], continued[2] or "")
        else:
            raise RefusedError(f"the primary does not sync: {self._answer()}", answer=reply)
