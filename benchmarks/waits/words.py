"""One command of very many words: how long does the PING of another client wait for it, beside redis-server?

A command is sent whole, its reply is read as it comes, and a process of its own sends a PING every millisecond
(probe.py) from before the command until behind its reply.  For what a client leaves behind with the server (keys that
it watches or waits for, subscriptions, a transaction) the closing of its connection is a line of its own.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.load.probe import Probe
from benchmarks.load.traffic import TIMEOUT_S
from benchmarks.report import Answer, Budget, Measurement
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.raw import Word, encode
from tests.support.servers import Server

WORDS: Final = 300_000
PAIRS: Final = WORDS // 2
QUEUED: Final = 100_000
_DONE: Final = b"that-was-all"
GROUP: Final = "workers"
_QUIET_S: Final = 1.0
_SETTLE_S: Final = 0.05
_PIECE_BYTES: Final = 1 << 20
_MAX_MS: Final = 100.0

Command = tuple[Word, ...]

_NAMES: Final = tuple(b"name:%d" % number for number in range(WORDS))
_IDS: Final = tuple(b"%d-0" % number for number in range(1, WORDS + 1))
_PENDING: Final = (
    ("XGROUP", "CREATE", "s", GROUP, "0", "MKSTREAM"),
    ("XADD", "s", "1-0", "field", "value"),
)


@dataclass(frozen=True)
class Case:
    """Commands of many words, and the commands that prepare them."""

    what: str
    command: tuple[Command, ...]
    before: tuple[Command, ...] = ()
    closing: bool = False  # whether closing the connection is measured as well
    waits: bool = False  # after the last command the client can send nothing else
    is_ours: bool = False  # redis-server 7.0 does not know it, or takes minutes: its WATCH and PSUBSCRIBE are quadratic


def _cases() -> Iterator[Case]:
    yield Case("EXISTS of one key", (("EXISTS", "a"),))
    for name in ("DEL", "UNLINK", "EXISTS", "TOUCH"):
        yield Case(name, ((name, *_NAMES),))
    yield Case("WATCH", (("WATCH", *_NAMES),), closing=True, is_ours=True)
    yield Case("UNWATCH", (("UNWATCH",),), before=(("WATCH", *_NAMES),), is_ours=True)
    for kind in ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"):
        undo = kind.replace("SUB", "UNSUB")
        is_ours = kind == "PSUBSCRIBE"
        yield Case(kind, ((kind, *_NAMES),), closing=True, is_ours=is_ours)
        yield Case(undo, ((undo, *_NAMES),))
        yield Case(f"{undo} of all", ((undo,),), before=((kind, *_NAMES),), is_ours=is_ours)
        yield Case(f"{kind}: RESET", (("RESET",),), before=((kind, *_NAMES),), is_ours=is_ours)
    yield Case("PUBSUB NUMSUB", (("PUBSUB", "NUMSUB", *_NAMES),))
    yield Case(
        "PUBLISH beside as many patterns", (("PUBLISH", "a", "b"),), before=(("PSUBSCRIBE", *_NAMES),), is_ours=True
    )
    yield Case("XREAD", (("XREAD", "STREAMS", *_NAMES[:PAIRS], *["0"] * PAIRS),))
    yield Case(
        "XREAD BLOCK", (("XREAD", "BLOCK", 0, "STREAMS", *_NAMES[:PAIRS], *["$"] * PAIRS),), closing=True, waits=True
    )
    yield Case(
        "XREADGROUP, no such group",
        (("XREADGROUP", "GROUP", GROUP, "c", "STREAMS", *_NAMES[:PAIRS], *[">"] * PAIRS),),
        before=_PENDING,
    )
    same = ("XREADGROUP", "GROUP", GROUP, "c", "STREAMS", *["s"] * PAIRS, *[">"] * PAIRS)
    yield Case("XREADGROUP of the same key", (same,), before=_PENDING)
    yield Case("XACK", (("XACK", "s", GROUP, *_IDS),), before=_PENDING)
    yield Case("XDEL", (("XDEL", "s", *_IDS),), before=_PENDING)
    yield Case("XCLAIM", (("XCLAIM", "s", GROUP, "c", 0, *_IDS),), before=_PENDING)
    yield Case("XADD", (("XADD", "s", "*", *_NAMES),))
    yield Case("XACKDEL", (("XACKDEL", "s", GROUP, "IDS", WORDS, *_IDS),), before=_PENDING, is_ours=True)
    yield Case("XDELEX", (("XDELEX", "s", "IDS", WORDS, *_IDS),), before=_PENDING, is_ours=True)
    yield Case("XNACK", (("XNACK", "s", GROUP, "SILENT", "IDS", WORDS, *_IDS),), before=_PENDING, is_ours=True)
    yield Case("CONFIG GET", (("CONFIG", "GET", *_NAMES),))
    yield Case("CONFIG SET", (("CONFIG", "SET", *_NAMES),))
    yield Case("CONFIG SET of the same", (("CONFIG", "SET", *["maxclients", "1000"] * PAIRS),))
    yield Case("CLIENT LIST ID", (("CLIENT", "LIST", "ID", *range(1, WORDS + 1)),))
    yield Case("CLIENT KILL", (("CLIENT", "KILL", *["ID", 1_000_000] * PAIRS),))
    yield Case("CLIENT TRACKING", (("CLIENT", "TRACKING", "on", *["PREFIX", "a"] * PAIRS),))
    yield Case("COMMAND INFO", (("COMMAND", "INFO", *_NAMES),))
    yield Case("COMMAND INFO of XADD", (("COMMAND", "INFO", *["xadd"] * (WORDS // 10)),))
    yield Case("COMMAND DOCS", (("COMMAND", "DOCS", *_NAMES),))
    yield Case("COMMAND GETKEYS", (("COMMAND", "GETKEYS", "DEL", *_NAMES),))
    yield Case("COMMAND GETKEYS XREAD", (("COMMAND", "GETKEYS", "XREAD", "STREAMS", *_NAMES[:PAIRS], *["0"] * PAIRS),))
    yield Case("COMMAND GETKEYSANDFLAGS", (("COMMAND", "GETKEYSANDFLAGS", "DEL", *_NAMES),))
    yield Case("HELLO", (("HELLO", 2, *["SETNAME", "a"] * PAIRS),))
    yield Case("LATENCY RESET", (("LATENCY", "RESET", *_NAMES),))
    yield Case("LATENCY HISTOGRAM", (("LATENCY", "HISTOGRAM", *_NAMES),))
    yield Case("INFO", (("INFO", *_NAMES),))
    yield Case("INFO of the same", (("INFO", *["server"] * WORDS),))
    yield Case("MGET, unknown here", (("MGET", *_NAMES),))
    queued = (("MULTI",), *[("EXISTS", "a")] * QUEUED)
    yield Case("MULTI and so many EXISTS", queued, closing=True, waits=True)
    yield Case("EXEC of them", (("EXEC",),), before=queued)
    yield Case("DISCARD of them", (("DISCARD",),), before=queued)
    yield Case("MULTI, WATCHed and EXEC", (("EXEC",),), before=(("WATCH", *_NAMES), ("MULTI",)), is_ours=True)
    yield Case("MULTI, EXISTS, EXEC", (("MULTI",), ("EXISTS", *_NAMES), ("EXEC",)))


def answer(rig: Rig) -> Answer:
    lines: dict[str, Measurement] = {}
    budget = Budget(f"< {_MAX_MS:g} ms or ratio < 2", lambda ours, ratio: ours < _MAX_MS or ratio < 2)
    for contender in rig.turns(f"commands of {WORDS:,} words"):
        with rig.server(contender, "everysec") as server:
            for case in _cases():
                if case.is_ours and contender is Contender.REDIS:
                    continue
                rig.say(f"{case.what}: {contender.value}")
                for what, longest_ms in _stalls(server, case):
                    line = lines.setdefault(what, Measurement(what, "ms", budget))
                    samples_of(line, contender).append(longest_ms)
    return Answer(
        f"One command of {WORDS:,} words: longest PING of another client",
        "python -m benchmarks.load.probe PORT",
        list(lines.values()),
        (f"Names of up to 11 bytes; {PAIRS:,} where each has a second word; {QUEUED:,} commands in a transaction.",),
    )


def _stalls(server: Server, case: Case) -> Iterator[tuple[str, float]]:
    """-> what was done, and how long the slowest PING took meanwhile, in ms."""
    with server.client(timeout_s=TIMEOUT_S) as cleaner:
        cleaner.ask("FLUSHALL")
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    with connection:
        host, port = connection.getsockname()
        run(connection, case.before, waits=any(words[0] == "MULTI" for words in case.before))
        with Probe(server.port) as probe:
            run(connection, case.command, waits=case.waits)
            time.sleep(_SETTLE_S)
        yield case.what, probe.latency.longest_ms
        with Probe(server.port) as probe:
            connection.close()
            _wait_until_gone(server, f" addr={host}:{port} ".encode())
            time.sleep(_SETTLE_S)
        if case.closing:
            yield f"{case.what}: closing of the client", probe.latency.longest_ms


def run(connection: socket.socket, commands: Sequence[Command], *, waits: bool) -> None:
    """Send these and read all replies: up to that of a PING, or until nothing comes for a while."""
    data = b"".join(map(encode, commands))
    if not waits:
        data += encode(("PING", _DONE))
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    end = b""
    while _DONE not in end:
        if waits and not select.select([connection], [], [], _QUIET_S)[0]:
            if sender.is_alive():
                continue
            break
        piece = connection.recv(_PIECE_BYTES)
        if not piece:
            raise ConnectionError("the server closed the connection")
        end = (end + piece)[-2 * len(_DONE) :]
    sender.join()


def _wait_until_gone(server: Server, address: bytes) -> None:
    with server.client(timeout_s=TIMEOUT_S) as client:
        while address in client.ask("CLIENT", "LIST"):
            time.sleep(0.05)
