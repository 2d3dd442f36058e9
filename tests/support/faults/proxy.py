"""A TCP proxy between two servers, to cut, to hold up and to damage what passes.

Its port stays while the server behind it may come back on another one.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PIECE_BYTES = 1 << 16

# What becomes of bytes on their way from the server to its client: the bytes, and how many have passed before them.
Alter = Callable[[bytes, int], bytes]
# What is done first, while they wait: the client's port, and how many have passed before them.
Hold = Callable[[int, int], None]


class Proxy:
    """Passes on every connection to 127.0.0.1, port `target()`."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.refuses = False  # new connections are closed at once
        self.alter: Alter | None = None
        self.hold: Hold | None = None
        self.passes = threading.Event()  # cleared: nothing passes, and nobody is told
        self.passes.set()
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def cut(self) -> None:
        """End every connection there is, whatever is under way on it."""
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self.passes.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target()), timeout=60)
            except OSError:
                near.close()
                continue
            with self._lock:  # before others can see it, so that `cut` finds it
                self._open |= {near, far}
            self.connections += 1
            threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        passed = 0
        try:
            with selectors.DefaultSelector() as selector:
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    end.settimeout(120)
                    selector.register(end, selectors.EVENT_READ)
                while True:
                    for key, _ in selector.select():
                        self.passes.wait()
                        source = near if key.fileobj is near else far
                        data = source.recv(_PIECE_BYTES)
                        if not data:
                            return
                        if source is far:
                            size = len(data)
                            if self.hold is not None:
                                self.hold(near.getpeername()[1], passed)
                            if self.alter is not None:
                                data = self.alter(data, passed)
                            passed += size
                        (far if source is near else near).sendall(data)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= {near, far}
            near.close()
            far.close()
