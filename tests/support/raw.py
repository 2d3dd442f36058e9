"""A RESP client that keeps every byte: what tests compare is what went over the wire, not what a library made of it.

`Frames` cuts a stream of bytes into replies (RESP2 and RESP3); `Node` is one reply taken apart, for masks that change
one number and leave the rest alone; `RawClient` is a blocking socket with pipelining on top.  Knows no server.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

Word = bytes | str | int
CRLF: Final = b"\r\n"

# Which first bytes announce what.
_LINES: Final = frozenset(b"+-:_#,(")
_BULKS: Final = frozenset(b"$=!")
_CHILDREN: Final = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}


class NotResp(AssertionError):
    """A server sent bytes that are no reply."""


def encode_word(word: Word) -> bytes:
    if isinstance(word, bytes):
        return word
    return str(word).encode()


def encode(words: Sequence[Word]) -> bytes:
    """One command as a RESP array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = encode_word(word)
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Frames:
    """Cuts received bytes into whole replies.  Remembers where it stopped, so a reply in many pieces is read once."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._position = 0  # everything before this belongs to the reply being read
        self._missing = 1  # values still to come before that reply is complete

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> bytes | None:
        """The next whole reply, or None when more bytes are needed."""
        data = self._data
        while self._missing:
            end = data.find(CRLF, self._position)
            if end < 0:
                return None
            kind = data[self._position]
            if kind in _LINES:
                self._position = end + 2
            elif kind in _BULKS:
                size = int(data[self._position + 1 : end])
                after = end + 2 if size < 0 else end + 2 + size + 2
                if after > len(data):
                    return None
                if data[after - 2 : after] != CRLF:
                    raise NotResp(f"a bulk string that does not end in CRLF: {bytes(data[self._position : after])!r}")
                self._position = after
            elif kind in _CHILDREN:
                count = int(data[self._position + 1 : end])
                self._missing += max(count, 0) * _CHILDREN[kind]
                self._position = end + 2
                if kind == ord("|"):  # an attribute comes before the value it describes
                    self._missing += 1
            else:
                raise NotResp(f"not a reply: {bytes(data[self._position : self._position + 80])!r}")
            self._missing -= 1
        reply = bytes(data[: self._position])
        del data[: self._position]
        self._position = 0
        self._missing = 1
        return reply

    def pending(self) -> bytes:
        """Bytes of the reply that is not complete yet."""
        return bytes(self._data)


@dataclass(frozen=True)
class Node:
    """One RESP value.  `text` is what stands after the type byte (the content of a bulk, the number of a `:`).

    `children` is None for a scalar.  A null array is a scalar of kind `*` with text `-1`, and a null bulk has the kind
    `nil$`, so that neither equals an empty array or the word `-1`.
    """

    kind: str
    text: bytes
    children: tuple[Node, ...] | None = None

    def __str__(self) -> str:
        if self.children is not None:
            return f"{self.kind}[" + " ".join(map(str, self.children)) + "]"
        return f"{self.kind}{self.text.decode('latin-1')!r}"

    def with_children(self, children: Iterable[Node]) -> Node:
        return Node(self.kind, self.text, tuple(children))

    def pairs(self) -> list[tuple[Node, Node]]:
        """A map's pairs, whether it came as a RESP3 map or as a flat array."""
        assert self.children is not None
        return list(zip(self.children[::2], self.children[1::2], strict=True))

    def map_leaves(self, change: Callable[[Node], Node]) -> Node:
        if self.children is None:
            return change(self)
        return self.with_children(child.map_leaves(change) for child in self.children)


def parse(reply: bytes) -> Node:
    """Take one whole reply apart."""
    node, end = _parse_at(reply, 0)
    if end != len(reply):
        raise NotResp(f"bytes after the end of a reply: {reply[end : end + 80]!r}")
    return node


def _parse_at(data: bytes, position: int) -> tuple[Node, int]:
    end = data.index(CRLF, position)
    kind = data[position]
    text = data[position + 1 : end]
    after = end + 2
    if kind in _BULKS and text != b"-1":
        size = int(text)
        return Node(chr(kind), data[after : after + size]), after + size + 2
    if kind in _BULKS:
        return Node("nil" + chr(kind), text), after
    if kind in _CHILDREN and text != b"-1":
        children = []
        for _ in range(int(text) * _CHILDREN[kind]):
            child, after = _parse_at(data, after)
            children.append(child)
        return Node(chr(kind), text, tuple(children)), after
    return Node(chr(kind), text), after


class RawClient:
    """A blocking connection.  `timeout_s` bounds every wait, so that a server that never answers fails a test."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", timeout_s: float = 60.0) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, *words: Word) -> None:
        self.socket.sendall(encode(words))

    def reply(self) -> bytes:
        """The bytes of the next reply.  ConnectionError when the server closed, TimeoutError when it says nothing."""
        while (reply := self._frames.next()) is None:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError(f"closed by the server, after {self._frames.pending()[:200]!r}")
            self._frames.feed(data)
        return reply

    def ask(self, *words: Word) -> bytes:
        """Send one command and return the bytes of its reply."""
        self.send(*words)
        return self.reply()

    def tree(self, *words: Word) -> Node:
        return parse(self.ask(*words))

    def info(self, *sections: str) -> dict[str, str]:
        """The fields of INFO."""
        lines = self.tree("INFO", *sections).text.decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def pipeline(self, commands: Sequence[Sequence[Word]]) -> list[bytes]:
        """Send all commands in one go, then read their replies."""
        self.socket.sendall(b"".join(map(encode, commands)))
        return [self.reply() for _ in commands]

    def end(self) -> None:
        """Send nothing more, and still read."""
        self.socket.shutdown(socket.SHUT_WR)

    def rest_until_closed(self) -> bytes:
        """Everything the server still sends before it closes the connection."""
        data = bytearray(self._frames.pending())
        try:
            while piece := self.socket.recv(1 << 16):
                data += piece
        except ConnectionResetError:
            pass
        return bytes(data)


def quote(word: bytes) -> str:
    """A word as redis-cli takes it."""
    if word and all(33 <= byte < 127 and byte not in b"\"'\\" for byte in word):
        return word.decode()
    named = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 92: "\\\\"}
    inside = (named.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in word)
    return '"' + "".join(inside) + '"'
