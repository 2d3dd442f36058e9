"""A blocking connection to a Redis or Riverbed, for tools, with clear messages when it fails.

The server is not trusted: bytes that do not parse end the connection, and so does a timeout.  Memory grows with what it
has sent, not with what it announces, and a reply beyond REPLY_VARIABLE ends the connection.  Parsing one takes its
bytes, and those of its longest string once more.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import ssl
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import hiredis

from riverbed.store.format.log_lines import encode_command
from riverbed.tools.console.console import Failure
from riverbed.tools.live.announced import MAX_STRING_BYTES, Announced, AnnouncementError
from riverbed.tools.live.passwords import FILE_VARIABLE, VARIABLE, find_password
from riverbed.tools.live.tls import NO_TLS, TlsOptions

SCHEMES: Final = ("redis://", "rediss://")
DEFAULT_PORT: Final = 6379
CONNECT_TIMEOUT_S: Final = 10.0
REPLY_VARIABLE: Final = "RIVERBED_MAX_REPLY_MB"
_READ_BYTES: Final = 1 << 18
# A server that sends a byte now and then would keep a tool for ever.  No line is as slow as this.
_MIN_BYTES_A_TIMEOUT: Final = 1 << 10
_MIN_WAIT_S: Final = 0.001
# Two strings of the greatest length that servers take: entries beyond are possible, and rare.
_DEFAULT_REPLY_MB: Final = 1024
_USER_PART = re.compile("//.*@", re.DOTALL)

# Raised when a reply is another than the code expects, by the code that takes it apart.
_ERRORS_OF_FORM: Final = (TypeError, ValueError, LookupError, AttributeError, OverflowError)

Word = bytes | str | int


class ReplyError(Exception):
    """The server answered with an error: `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]

    @property
    def is_gone(self) -> bool:
        """Whether a key or group is not there (any more): deleted, replaced, or on another node of a cluster by now."""
        text = str(self)
        return self.code in ("NOGROUP", "WRONGTYPE", "MOVED", "ASK") or "no such key" in text or "key to exist" in text


class LongReplyError(Failure):
    """A reply was longer than REPLY_VARIABLE allows.  The connection is of no use; `reconnect` makes another."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server, and the user to log in as.  `database` is None when the URL names none."""

    host: str
    port: int = DEFAULT_PORT
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int | None = None
    tls: bool = False
    tls_options: TlsOptions = NO_TLS

    def __str__(self) -> str:
        """Without the password."""
        return f"{self.host}:{self.port}"


def parse_url(text: str) -> Address:
    """`redis://[user:password@]host[:port][/database]`, or `rediss://`.  Raises ValueError with what is wrong."""
    try:
        parts = urllib.parse.urlsplit(text)
    except ValueError:  # whose text may quote the password
        raise ValueError("the host is not written as one") from None
    if f"{parts.scheme}://" not in SCHEMES:
        raise ValueError("expected redis://[user:password@]host[:port][/database]")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ValueError("the port is not a number up to 65535") from error
    if not parts.hostname:
        raise ValueError("no host is named")
    path = parts.path.strip("/")
    if path and not (path.isascii() and path.isdigit() and len(path) < 10):
        raise ValueError("the part behind the host is not the number of a database")
    return Address(
        parts.hostname,
        port,
        urllib.parse.unquote(parts.username) if parts.username else None,
        urllib.parse.unquote(parts.password) if parts.password else None,
        int(path) if path else None,
        parts.scheme == "rediss",
    )


def without_password(url: str) -> str:
    """`url` without user and password, for messages."""
    return _USER_PART.sub("//(redacted)@", url)


class RedisClient:
    """One connection.  Replies are RESP2: bytes, int, None, lists; errors inside lists are values.

    Every method raises Failure when the connection fails, ReplyError when the server replies with an error.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Connect and authenticate.  From then on, no answer for `timeout_s` is a failure, and so is a trickle."""
        self.address = address
        self.bytes_received = 0
        self._timeout_s = timeout_s
        self._most_bytes = _most_bytes()
        self._last = ""  # the name of the last request
        self._database: Word | None = None  # that was selected last
        self._password = address.password
        self._connect()

    def _connect(self) -> None:
        address, timeout_s = self.address, self._timeout_s
        self._reader = hiredis.Reader()
        self._announced = Announced(min(self._most_bytes, max(MAX_STRING_BYTES, self._most_bytes // 2)))
        self._owed = 0  # replies
        context = address.tls_options.context() if address.tls else None
        try:
            self._socket = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        except UnicodeError as error:  # of a label that is empty, or longer than names of hosts allow
            raise Failure(f"{address} cannot be reached: {address.host!r} is not the name of a host") from error
        except OSError as error:
            raise self._lost(error, "cannot be reached", CONNECT_TIMEOUT_S) from error
        try:
            if context is not None:
                self._socket = self._encrypted(context)
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._authenticate()
        except OSError as error:
            self._socket.close()
            raise self._lost(error, "cannot be spoken to", self._timeout_s) from error
        except BaseException:
            self._socket.close()
            raise

    def reconnect(self) -> None:
        """Connect again, to the database that was selected last.  Replies that have not come yet are given up."""
        self.close()
        self._connect()
        if self._database is not None:
            self.call("SELECT", self._database)

    def _encrypted(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        try:
            return context.wrap_socket(self._socket, server_hostname=self.address.host)
        except TimeoutError as error:
            raise self._lost(error, "does not finish the TLS handshake", CONNECT_TIMEOUT_S) from error

    def _authenticate(self) -> None:
        user, password = self.address.user, self._password
        try:
            if password is None:
                if not user and self._lets_in():
                    return
                password = self._password = find_password(str(self.address))
            if password is None and user:  # one that needs none takes any; without AUTH it would act as `default`
                password = ""
            if password is not None:
                self.call("AUTH", *([user] if user else []), password)
            self.call("PING")
        except ReplyError as error:
            said = str(error)
            if password:  # a server of another protocol may quote the request
                said = said.replace(password, "(redacted)")
            if error.code in ("NOAUTH", "WRONGPASS", "ERR"):
                advice = f"; put the password into {VARIABLE}, or the name of its file into {FILE_VARIABLE}"
                said += "" if password else advice
                raise Failure(f"{self.address} does not let us in: {said}") from None
            raise Failure(f"{self.address}: {said}") from None

    def _lets_in(self) -> bool:
        """Whether the server replies to a client without a password."""
        try:
            self.call("PING")
        except ReplyError as error:
            if error.code != "NOAUTH":
                raise
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()
        self.judge(error)

    def judge(self, error: BaseException | None) -> None:
        """Raise Failure for an error of code that takes replies apart: the server may have sent anything."""
        if isinstance(error, _ERRORS_OF_FORM):
            raise Failure(f"{self.address} replies to {self._last} in no known form: {error!r}") from error

    @functools.cached_property
    def is_riverbed(self) -> bool:
        """Whether this is a Riverbed, which has commands that no Redis has.  Raises ReplyError if that is not told."""
        try:
            return b"\nriverbed_version:" in self.call("INFO", "server")
        except ReplyError as error:
            if error.code != "NOPERM":
                raise
            return self.has_command("riverbed")

    def has_command(self, name: str) -> bool:
        """Whether the server has a command, or a subcommand such as `xgroup|seen`.  Raises ReplyError."""
        return bool(self.call("COMMAND", "INFO", name) != [None])

    # -- requests ------------------------------------------------------------------------------------------------------

    def call(self, *words: Word) -> Any:
        """One request and its reply."""
        self.send([words])
        return self.receive()

    def call_all(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send several requests at once; -> their replies.  The first error is raised when all replies have come."""
        self.send(commands)
        replies = [self._next() for _ in commands]
        for reply in replies:
            _raise_error(reply)
        return replies

    def send(self, commands: Sequence[Sequence[Word]]) -> None:
        """Send requests; call `receive` once for each."""
        data = b"".join(
            encode_command([word if isinstance(word, bytes) else str(word).encode() for word in words])
            for words in commands
        )
        for words in commands:
            if words[0] == "SELECT":
                self._database = words[1]
        self._owed += len(commands)
        self._last = str(commands[-1][0]) if commands else self._last
        self._socket.settimeout(self._timeout_s)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error, "takes no requests any more", self._timeout_s) from error

    def receive(self) -> Any:
        """The next reply."""
        reply = self._next()
        _raise_error(reply)
        return reply

    def _next(self) -> Any:
        before = since = self.bytes_received
        deadline = time.monotonic() + self._timeout_s
        try:
            while (reply := self._reader.gets()) is False:
                if self.bytes_received - since >= _MIN_BYTES_A_TIMEOUT:
                    since, deadline = self.bytes_received, time.monotonic() + self._timeout_s
                self._socket.settimeout(max(deadline - time.monotonic(), _MIN_WAIT_S))
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise Failure(f"{self.address} closed the connection")
                self.bytes_received += len(data)
                if self.bytes_received - before > self._most_bytes:
                    raise LongReplyError(
                        f"{self.address} sends more than {self._most_bytes >> 20} MB in reply to {self._last}; "
                        f"{REPLY_VARIABLE} allows more"
                    )
                self._announced.take(data)
                self._reader.feed(data)
        except (hiredis.ProtocolError, AnnouncementError) as error:
            raise Failure(f"{self.address} does not speak Redis's protocol: {error}") from error
        except OSError as error:
            raise self._lost(error, "stopped answering", self._timeout_s) from error
        self._owed -= 1
        if not self._owed and not self._reader.has_data():
            self._announced.complete()
        return reply

    def _lost(self, error: OSError, what: str, timeout_s: float) -> Failure:
        if isinstance(error, TimeoutError):
            return Failure(f"{self.address} {what}: no reply within {timeout_s:g} s")
        return Failure(f"{self.address} {what}: {error.strerror or error}")


def _most_bytes() -> int:
    """How long a reply may be.  Raises Failure."""
    text = os.environ.get(REPLY_VARIABLE) or str(_DEFAULT_REPLY_MB)
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise Failure(f"{REPLY_VARIABLE}: {text!r} is not a number of megabytes")
    return int(text) << 20


def fields(reply: Any) -> dict[bytes, Any]:
    """A reply of names and values in turn, as a dictionary."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def number(value: Any) -> int:
    """A number in a reply.  Raises TypeError for anything else."""
    if not isinstance(value, int):
        raise TypeError(f"{value!r} where a number is expected")
    return value


def _raise_error(reply: Any) -> None:
    if isinstance(reply, hiredis.ReplyError):
        raise ReplyError(str(reply))
