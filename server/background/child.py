"""The process's end of `worker.py`: orders come on standard input, answers go to standard output.

A process that works for a server ends with the server, and ends on request, whatever it is doing:

    end of its input    the server has gone, or wants no more of it   -.    work that asks `go_on` between two steps
    SIGTERM             the same                                      -'->  unwinds; after a second the process ends

No signal raises an exception anywhere, least of all inside of LMDB.  SIGTERM is blocked, and a thread waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import lmdb

from riverbed.store.errors import TABLE_DAMAGE, CorruptionError, StoreError

HELLO: Final = "riverbed"
_ALIVE: Final = b"{}\n"
_ALIVE_S: Final = 5.0
_REPORT_S: Final = 0.2
# Enough to delete what is half made; what is left then is cleared away by the server, or its next start.
_CLEANUP_S: Final = 1.0


class Ended(Exception):
    """The server has gone, or wants no more of this work."""


class Server:
    """The server that this process works for."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._is_over = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process then
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for all threads, LMDB's included
        for run in (self._listen_to_signals, self._listen_to_server, self._show_life):
            threading.Thread(target=run, name=run.__name__, daemon=True).start()

    # -- for the work --------------------------------------------------------------------------------------------------

    def work_in(self, directory: Path) -> None:
        """Make it the working directory: relative paths make nothing again there once the next server has deleted it.

        Raises Ended, OSError.
        """
        os.chdir(directory)
        if not self._write(_ALIVE):  # else it may be the next server's
            raise Ended

    def say(self, **answer: object) -> None:
        """Answer, or report progress.  Raises Ended, also when the server is not there to read it."""
        self.go_on()
        # once it is read, the server may end us: that makes nothing undone
        if not self._write(json.dumps(answer).encode() + b"\n"):
            raise Ended

    def listen(self) -> dict[str, Any]:
        """Wait for the next order.  Raises Ended, also instead of an order of a server that has gone since."""
        order = self._orders.get()
        self.go_on()
        assert order is not None, "the end comes with that"
        return order

    def go_on(self) -> None:
        """Raise Ended when there is nothing more to work for; to be called between two steps of the work."""
        if self._is_over:
            raise Ended

    # -- threads -------------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        signal.sigwait([signal.SIGTERM])
        self._end()

    def _listen_to_server(self) -> None:
        rest = b""
        while data := os.read(0, 1 << 16):  # not by sys.stdin, whose lock Python wants when it ends
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._orders.put(json.loads(line))
        self._end()

    def _show_life(self) -> None:
        while True:
            time.sleep(_ALIVE_S)
            self._write(_ALIVE)

    def _write(self, line: bytes) -> bool:
        """-> whether the server is there to read it."""
        with self._writing:
            try:
                while line:
                    line = line[os.write(1, line) :]
            except OSError:
                self._is_over = True
                return False
            return True

    def _end(self) -> None:
        self._is_over = True
        self._orders.put(None)
        time.sleep(_CLEANUP_S)
        os._exit(1)


class Reports:
    """Tells the server of progress, now and then."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._said_s = 0.0

    def step(self, step: str, done: int, total: int) -> None:
        self._server.go_on()
        now_s = time.monotonic()
        if now_s - self._said_s >= _REPORT_S:
            self._said_s = now_s
            self._server.say(step=step, done=done, total=total)


def work_for_server(module: str, work: Callable[[Server], None]) -> NoReturn:
    """Run `work`, and end the process; failures are reported to the server.

    Nothing waits for threads, nor for what Python does at its end.
    """
    server = Server()
    status = 1
    try:
        server.say(**{HELLO: module})
        work(server)
        status = 0
    except Ended:
        pass
    except (StoreError, lmdb.Error, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, lmdb.Error) and reason.endswith(os.strerror(errno.EIO)):
            reason += "; a full disk gives this error, too"
        _report(server, reason, has_met_damage=isinstance(error, (CorruptionError, *TABLE_DAMAGE)))
    except BaseException:
        traceback.print_exc()  # the server logs it
        sys.stderr.flush()
    os._exit(status)


def _report(server: Server, reason: str, *, has_met_damage: bool) -> None:
    with contextlib.suppress(Ended):
        server.say(failed=reason, damage=has_met_damage)
