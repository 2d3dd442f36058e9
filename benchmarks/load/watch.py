"""The private memory of a server while something is done to it, looked at twenty times a second."""

from __future__ import annotations

import threading
from typing import Final, Self

from tests.support.servers import Server

_LOOK_S: Final = 0.05


class Watch:
    """Looks while the `with` block runs; `peak_bytes` is the most of it, `before_bytes` what it was before."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.before_bytes = self.peak_bytes = server.private_bytes()

    @property
    def grown_bytes(self) -> int:
        """How far the memory went above what it was at the beginning."""
        return self.peak_bytes - self.before_bytes

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.peak_bytes = max(self.peak_bytes, self._server.private_bytes())
