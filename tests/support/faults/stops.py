"""Every way in which a server ends: by a signal, by a command, or killed."""

from __future__ import annotations

import os
import signal
from typing import Final

from tests.support.servers import Server

SIGNALS: Final = {"TERM": signal.SIGTERM, "INT": signal.SIGINT}
COMMANDS: Final = ("SHUTDOWN", "SHUTDOWN NOSAVE", "SHUTDOWN SAVE", "SHUTDOWN NOW", "SHUTDOWN NOSAVE NOW FORCE")
# HUP ends no server: it must live on, and is stopped by TERM.
GRACEFUL: Final = (*SIGNALS, *COMMANDS, "HUP")
KILL: Final = "KILL"
WAYS: Final = (*GRACEFUL, KILL)


def end(server: Server, way: str) -> None:
    """End `server` in that way, and wait until it has ended, with status 0 unless it was killed."""
    assert way in WAYS, way
    if way == KILL:
        server.kill()
        return
    if way == "HUP":
        os.kill(server.pid, signal.SIGHUP)
        with server.client() as client:
            assert client.ask("PING") == b"+PONG\r\n", "a server that hears of HUP lives on"
        os.kill(server.pid, signal.SIGTERM)
    elif way in SIGNALS:
        os.kill(server.pid, SIGNALS[way])
    else:
        with server.client() as client:
            client.send(*way.split())
            assert client.rest_until_closed() == b"", way
    assert server.wait_ended() == 0, f"{way}\n{server.log_tail()}"
