"""How many bytes does an entry take on disk, in the log and in the tables, and in Redis's log and memory?"""

from __future__ import annotations

from pathlib import Path

from benchmarks.load.traffic import fields, info, load_in_turn
from benchmarks.report import Answer, Measurement
from benchmarks.rig import Contender, Rig

_UNIT = "bytes/entry"
_STREAMS = 1000


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.entries
    log = Measurement("log, as written", _UNIT)
    tables = Measurement("tables (LMDB)", _UNIT)
    in_turn = Measurement(f"tables (LMDB), {_STREAMS:,} streams in turn", _UNIT)
    rewritten = Measurement("log, rewritten (RDB)", _UNIT)
    memory = Measurement("data set in memory (used_memory_dataset)", _UNIT)
    for contender, own in ((Contender.RIVERBED, log.riverbed), (Contender.REDIS, log.redis)):
        rig.say(f"bytes on disk: {contender.value}")
        directory = rig.dataset(contender, entries).directory
        with rig.opened(contender, directory) as server:
            with server.client() as client:
                length = int(client.ask("XLEN", "events")[1:])
            own.append(_disk_bytes(directory / "appendonlydir") / length)
            if contender is Contender.RIVERBED:
                tables.riverbed.append(_disk_bytes(directory / "state") / length)
            else:
                memory.redis.append(int(info(server.port, "memory")["used_memory_dataset"]) / length)
    rig.say(f"bytes on disk: {_STREAMS:,} streams")
    with rig.server(Contender.RIVERBED, "everysec") as server, server.client() as client:
        load_in_turn(server.port, _STREAMS, entries)
        if client.ask("SAVE") != b"+OK\r\n":
            raise AssertionError("the tables lack what the log has")
    in_turn.riverbed.append(_disk_bytes(server.directory / "state") / entries)
    rewritten.redis.append(_disk_bytes(rig.rewritten(entries).directory / "appendonlydir", "*.base.rdb") / entries)
    payload = sum(map(len, fields(0)))
    return Answer(
        f"Bytes per entry of {payload} bytes in 4 fields, {entries:,} entries",
        "du DIR/appendonlydir DIR/state",
        [log, tables, in_turn, rewritten, memory],
    )


def _disk_bytes(directory: Path, pattern: str = "*") -> int:
    """Blocks in use: files may have holes."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob(pattern) if path.is_file())
