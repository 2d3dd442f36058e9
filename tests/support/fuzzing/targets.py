"""What reads bytes from outside: requests of strangers, files of a directory, input of tools.

A target takes bytes and returns.  The errors that its reader promises are no news; any other exception is a find.  It
is made once in a process, with a directory of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lmdb
from crc32c import crc32c

from riverbed.server.commands import load_commands
from riverbed.server.commands.replay import Replayer
from riverbed.server.commands.table import COMMANDS
from riverbed.server.config.config import Config
from riverbed.server.config.file import ConfigFileError
from riverbed.server.config.values import ConfigError
from riverbed.server.protocol.request_reader import RequestReader
from riverbed.store.check import check
from riverbed.store.disk.files import OsFiles
from riverbed.store.engine import Engine
from riverbed.store.errors import StoreError
from riverbed.store.log import manifest
from riverbed.store.log.append_log import Log
from riverbed.store.options import Fsync, Options
from riverbed.store.snapshot.manifest import FileDigest, decode_manifest
from riverbed.store.snapshot.reader import Snapshot, open_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.console.console import Failure, ProgressBar
from riverbed.tools.loading.sinks import DirectorySink
from riverbed.tools.subcommands import load
from tests.support.in_process import HandClock
from tests.support.read_log import manifest_of
from tests.support.store.stores import Store
from tests.support.ticks import Ticks

Target = Callable[[bytes], None]

# What ends the process, starts others, waits for time, or leaves the machine.
_LEFT_OUT: Final = frozenset(
    b"SHUTDOWN FAILOVER REPLICAOF SLAVEOF DEBUG BGREWRITEAOF BGSAVE SAVE SYNC PSYNC RIVERBED MONITOR".split()
)
_LEFT_OUT_PAIRS: Final = frozenset(
    {(b"CLIENT", b"PAUSE"), (b"CONFIG", b"REWRITE"), (b"CONFIG", b"SET"), (b"ACL", b"SAVE"), (b"ACL", b"LOAD")}
)
_LONGEST_LOG: Final = 1 << 20
_MANIFEST_GUARD: Final = re.compile(rb"#CK:crc32c=[0-9a-f]{8}\n")
_SNAPSHOT_GUARD: Final = re.compile(rb',\n "crc32c": "[0-9a-f]{8}"\n}\n')


def requests(place: Path) -> Target:
    """Whole, in two pieces, and from a client that has not said its password."""

    def read(data: bytes) -> None:
        cut = len(data) // 2
        found = []
        for pieces in ([data], [data[:cut], data[cut:]]):
            reader = RequestReader(authenticated=True)
            requests = [request for piece in pieces for request in reader.feed(piece)]
            found.append((requests, None if reader.error is None else reader.error.text))
        assert found[0] == found[1], "what is read depends on how it arrives"
        RequestReader(authenticated=False).feed(data)

    return read


def commands(place: Path) -> Target:
    """Lines of words, from one client; no answer may be that of a bug."""
    loop = asyncio.new_event_loop()
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))

    async def make() -> Ticks:
        load_commands()
        return Ticks(place)

    ticks = loop.run_until_complete(make())

    async def run(data: bytes) -> None:
        client = ticks.connect()
        for line in data.split(b"\n")[:200]:
            words = line.split()
            name = [word.upper() for word in words[:2]]
            if not words or name[0] in _LEFT_OUT or tuple(name) in _LEFT_OUT_PAIRS:
                continue
            client.send_words(*words)
        await ticks.settle()
        for reply in client.replies():
            assert b"internal error" not in reply, reply
        client.leave()
        cleaner = ticks.connect()
        cleaner.send("FLUSHALL")
        await ticks.settle()
        cleaner.leave()
        assert failures == []

    return lambda data: loop.run_until_complete(run(data))


def random_commands(chance: random.Random) -> bytes:
    """Any command, with any words."""
    load_commands()
    names = list(COMMANDS)
    words = (
        *(b"s", b"s", b"s", b"t", b"g", b"c", b"*", b"0-1", b"1-1", b"5-5", b"-", b"+", b"$", b">", b"0", b"1", b"-1"),
        *(b"STREAMS", b"COUNT", b"BLOCK", b"GROUP", b"MAXLEN", b"MINID", b"LIMIT", b"=", b"~", b"FORCE", b"JUSTID"),
        *(b"MKSTREAM", b"NOACK", b"IDLE", b"RETRYCOUNT", b"ENTRIESREAD", b"FULL", b"IDS", b"KEEPREF", b"ACKED"),
        *(b"9223372036854775807", b"18446744073709551615-18446744073709551615", b"-9223372036854775809", b"nan"),
        *(b"9" * 400, b"\xff\xfe", b"a" * 1000, b"(1-1", b"CLAIM", b"NOMKSTREAM", b"WITHCODE", b"MATCH", b"[", b"**"),
    )
    lines = [b"XADD s 1-1 f v", b"XADD s 2-1 f v", b"XGROUP CREATE s g 0", b"XREADGROUP GROUP g c COUNT 1 STREAMS s >"]
    for _ in range(20):
        name = chance.choice(names)
        lines.append(b" ".join([name, *chance.choices(words, k=chance.randrange(9))]))
    return b"\n".join(lines)


def _small_store(place: Path) -> Store:
    store = Store(place)
    for number in range(1, 60):
        store.add(b"s", f"{number}-0", words=(b"f", b"v" * (number % 7)))
    store.run("XGROUP", "CREATE", "s", "g", "0")
    store.run("XREADGROUP", "GROUP", "g", "c", "COUNT", "5", "STREAMS", "s", ">")
    store.commit()
    store.engine.checkpoint()
    return store


def log(place: Path) -> Target:
    """A file of the log; what is read is executed as well."""
    store = _small_store(place / "store")
    store.engine.close()
    (incr,) = (place / "store" / "appendonlydir").glob("*.incr.aof")
    # as Redis lists its files: without checksums, so that damage reaches the commands
    plain = f"file {incr.name} seq 1 type i\n".encode()
    ours = manifest.serialize(manifest_of(place / "store"))

    def read(data: bytes) -> None:
        for lines in (ours, plain):
            shutil.rmtree(place / "store" / "state", ignore_errors=True)
            for path in incr.parent.iterdir():
                path.unlink()
            incr.write_bytes(data[:_LONGEST_LOG])
            incr.with_name("appendonly.aof.manifest").write_bytes(lines)
            with contextlib.suppress(StoreError):
                for batch in Log.find(place / "store", OsFiles()).read_only(None):
                    assert batch.commands is not None
            options = Options(fsync=Fsync.NO, map_bytes=1 << 28, reserve_bytes=0)
            with contextlib.suppress(StoreError):
                Engine.open(place / "store", execute=Replayer().execute, clock=HandClock(), options=options).abandon()

    return read


def log_manifest(place: Path) -> Target:
    def read(data: bytes) -> None:
        bare = _MANIFEST_GUARD.sub(b"", data)
        for lines in (data, bare + b"#CK:crc32c=%08x\n" % crc32c(bare)):
            with contextlib.suppress(StoreError):
                found = manifest.parse(lines, "appendonly.aof.manifest")
                assert manifest.parse(manifest.serialize(found), "m") == found

    return read


def configuration(place: Path) -> Target:
    path = place / "riverbed.conf"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(ConfigError, ConfigFileError):
            Config.load([str(path)])

    return read


def snapshots(place: Path) -> Target:
    """The manifest, and the list of streams of one whose manifest fits it."""
    store = _small_store(place / "store")
    store.engine.close()
    made = take_snapshot(place / "store", place / "snapshot", program="fuzz")

    def read(data: bytes) -> None:
        bare = _SNAPSHOT_GUARD.sub(b"", data)
        for text in (data, bare + b',\n "crc32c": "%08x"\n}\n' % crc32c(bare)):
            with contextlib.suppress(StoreError):
                decode_manifest(text, "manifest.json")
            (made.path / "manifest.json").write_bytes(text)
            with contextlib.suppress(StoreError):
                open_snapshot(made.path, verify=True)

    return read


def streams_of_a_snapshot(place: Path) -> Target:
    store = _small_store(place / "store")
    store.engine.close()
    made = take_snapshot(place / "store", place / "snapshot", program="fuzz")

    def read(data: bytes) -> None:
        (made.path / "streams.jsonl").write_bytes(data)
        manifest = replace(made.manifest, streams_file=FileDigest(len(data), crc32c(data)))
        with contextlib.suppress(StoreError):
            for stream in Snapshot(made.path, manifest).streams():
                assert stream.byte_count >= 0

    return read


def pages(place: Path) -> Target:
    """The tables' file: a check reports or is satisfied, and then the store opens on it or refuses to."""
    store = _small_store(place / "store")
    store.engine.close()
    data_file = place / "store" / "state" / "data.mdb"

    def read(data: bytes) -> None:
        data_file.write_bytes(data)
        with contextlib.suppress(OSError):
            (data_file.parent / "lock.mdb").unlink()
        with contextlib.suppress(StoreError, OSError, lmdb.Error):
            list(check(place / "store"))
        options = Options(fsync=Fsync.NO, map_bytes=1 << 28, reserve_bytes=0)
        with contextlib.suppress(StoreError, lmdb.Error):
            Engine.open(place / "store", execute=Replayer().execute, clock=HandClock(), options=options).abandon()

    return read


def loads(place: Path) -> Target:
    """Lines of JSON, and of CSV, as `riverbed load` appends them."""

    def read(data: bytes) -> None:
        for entries in (load._json_entries, load._csv_entries):
            shutil.rmtree(place / "store", ignore_errors=True)
            sink = DirectorySink(place / "store")
            try:
                with contextlib.suppress(Failure, load._BadLine), ProgressBar("") as bar:
                    lines = iter(io.BytesIO(data).readline, b"")
                    load._load(entries(lines, None), sink, b"k", bar, new_ids=False, skip=0)
            finally:
                sink.close()

    return read


TARGETS: Final[dict[str, Callable[[Path], Target]]] = {
    "requests": requests,
    "commands": commands,
    "log": log,
    "manifest": log_manifest,
    "configuration": configuration,
    "snapshot": snapshots,
    "streams": streams_of_a_snapshot,
    "pages": pages,
    "load": loads,
}
