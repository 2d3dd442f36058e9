"""A server that says what a test wants."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def impostor(*answers: bytes, patient: bool = True) -> Iterator[int]:
    """A port where each request gets the next of `answers`; then nothing, or the end when the last one is empty.

    Without `patient` the third answer and those behind it do not wait for requests.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(ConnectionError):  # when the peer has heard enough
                for number, reply in enumerate(answers):
                    if (patient or number < 2) and not peer.recv(1 << 16):
                        return
                    if not reply:
                        return
                    peer.sendall(reply)
                done.wait(600)

        worker = threading.Thread(target=serve)
        worker.start()
        try:
            yield listener.getsockname()[1]
        finally:
            done.set()
            worker.join()
