"""The product without sockets: an engine and the handlers, in this process, under a clock that tests set.

Each command is a tick of its own: it is executed, committed to the log, and its reply encoded and taken apart again,
so that what is compared is what a client would see.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.replay import Replayer, unconnected_session
from riverbed.server.commands.request import Request
from riverbed.server.commands.slices import SlicedCommand
from riverbed.server.errors import CommandError, wrong_arity
from riverbed.server.protocol.encode import encode
from riverbed.server.protocol.replies import NULL_ARRAY, OK, Block, LongReply
from riverbed.store.databases import consumer_ttl
from riverbed.store.engine import Engine
from riverbed.store.options import Fsync, Options
from riverbed.store.tables.view import View
from tests.support.raw import Node, parse

Words = list[bytes]


class HandClock:
    """A clock that stands still until it is moved.  `set_back_ms` changes the time of day alone."""

    def __init__(self, now_ms: float = 1_700_000_000_000) -> None:
        self.now_ms = now_ms
        self.set_back_ms = 0

    def time(self) -> float:
        return (self.now_ms - self.set_back_ms) / 1000

    def monotonic(self) -> float:
        return self.now_ms / 1000


class PassingClock(HandClock):
    """A clock on which `step_ms` pass before each look at it."""

    step_ms: float = 1

    def time(self) -> float:
        self.now_ms += self.step_ms
        return super().time()


class Product:
    """A store in `directory` that commands can be given to."""

    def __init__(self, directory: Path, clock: HandClock, *, node_max_entries: int = 100) -> None:
        self.directory = directory
        self.clock = clock
        self._options = Options(fsync=Fsync.NO, map_bytes=1 << 28, reserve_bytes=0, node_max_entries=node_max_entries)
        self._open()

    def _open(self) -> None:
        replayer = Replayer(self.clock.now_ms)
        self.engine = Engine.open(self.directory, execute=replayer.execute, clock=self.clock, options=self._options)
        self.session = unconnected_session(self.engine.txn.databases[0])
        self.request: Request = Request(self.session, self.engine.txn)

    # -- commands ------------------------------------------------------------------------------------------------------

    def execute(self, words: Words) -> Any:
        """The reply as a value; CommandError raised.  A read that would wait answers a null array."""
        request = self.request
        request.now_ms = self.clock.now_ms
        request.db = self.session.db
        request.argv = list(words)
        try:
            command = client_command(words)
            if not command.accepts(len(words)):
                raise wrong_arity(command.full_name)
            reply = command.handler(request)
            while isinstance(reply, SlicedCommand):
                if reply.needs_view:
                    self.engine.commit(self.clock.now_ms)
                    self.engine.checkpoint()
                    reply.show(View(self.engine.tables))
                reply = reply.step(request)
        finally:
            self.engine.commit(self.clock.now_ms)
        if isinstance(reply, Block):
            return NULL_ARRAY
        if isinstance(reply, LongReply):
            wire = b"".join(reply.pieces)
            reply.close()
            return value_of(parse(wire))
        return value_of(parse(encode(reply, self.session.resp)))

    def run(self, *words: bytes | str | int) -> Any:
        """`execute`, for hand-written tests."""
        return self.execute([word if isinstance(word, bytes) else str(word).encode() for word in words])

    def undo(self, words: Words) -> None:
        """Run a command, or its first slice, and take all of it back."""
        request = self.request
        request.now_ms, request.db, request.argv = self.clock.now_ms, self.session.db, list(words)
        with contextlib.suppress(CommandError):
            reply = client_command(words).handler(request)
            if isinstance(reply, (SlicedCommand, LongReply)):
                reply.close()
        self.engine.rollback(self.clock.now_ms)

    # -- life ----------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        self.engine.checkpoint()

    def purge(self) -> None:
        """Work off everything that waits to be deleted."""
        while self.engine.purge(0.0):
            pass

    def sweep(self) -> None:
        """Delete the consumers that have stayed away for too long."""
        assert consumer_ttl.sweep(self.engine.txn, self.clock.now_ms, lambda: False, lambda group: ())
        self.engine.commit(self.clock.now_ms)

    def restart(self) -> None:
        self.engine.close()
        self._open()

    def kill(self) -> None:
        """As `kill -9`, then a start: what was not checkpointed is only in the log."""
        self.abandon()
        self._open()

    def replay(self) -> None:
        """Kill it, lose the tables, and build them from the log alone."""
        self.abandon()
        shutil.rmtree(self.directory / "state")
        self._open()

    def abandon(self) -> None:
        """Let go of the files without a checkpoint."""
        self.engine.abandon()

    def close(self) -> None:
        self.engine.close()


def answer(run: Callable[[], Any]) -> Any:
    """What `run` returns, or the error line that it raises."""
    try:
        return run()
    except CommandError as error:
        return "-" + error.text.decode("latin-1")


def value_of(node: Node) -> Any:
    """A reply from the wire in the vocabulary of handlers."""
    if node.children is not None:
        return [value_of(child) for child in node.children]
    match node.kind:
        case ":":
            return int(node.text)
        case "*":
            return NULL_ARRAY
        case "nil$":
            return None
        case "$":
            return node.text
        case "+":
            return OK if node.text == b"OK" else node.text.decode()
        case _:
            return "-" + node.text.decode("latin-1")
