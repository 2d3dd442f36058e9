"""Tables that a tool makes of a log: nobody waits for their checkpoints, so that more rows may wait in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from riverbed.server.commands.replay import Replayer
from riverbed.store.check.findings import Contents
from riverbed.store.check.state import check_tables
from riverbed.store.disk.files import OsFiles
from riverbed.store.log.reader import Batch
from riverbed.store.position import LogPosition
from riverbed.store.progress import ignore
from riverbed.store.recovery.tables_from_log import TablesFromLog
from riverbed.store.wire import LOGGED, parse
from tests.support.raw import encode

_SERVED_BYTES = 2 << 20  # of rows that a server lets wait
_STREAMS = 50
_A_BATCH = 1000


def batches(count: int) -> Iterator[Batch]:
    """A log of short entries of many streams in turn."""
    at = 0
    for number in range(count):
        entries = [
            encode(("XADD", f"s{n % _STREAMS}", f"{n + 1}-0", "field", b"v" * 50))
            for n in range(number * _A_BATCH, (number + 1) * _A_BATCH)
        ]
        data = encode(("SELECT", 0)) + b"".join(entries)
        requests = parse(LOGGED, data)
        assert requests is not None
        yield Batch(requests, LogPosition(1, at + len(data), at + len(data)), 1, "log", at)
        at += len(data)


def test_more_rows_wait_than_in_a_server_and_all_reach_the_tables(tmp_path: Path) -> None:
    waiting = []

    def executed(size: int) -> None:
        waiting.append(sum(db.lent_bytes for db in made.txn.databases))

    with TablesFromLog(tmp_path, Replayer().execute, OsFiles()) as made:
        made.replay(batches(100), executed)
        assert _SERVED_BYTES < max(waiting) < 20 << 20
        made.commit(LogPosition(1, 1, 1))
        contents = Contents()
        found = [item for item in check_tables(made.tables, contents, ignore) if "Violation" in type(item).__name__]
        assert found == []
        assert (contents.streams, contents.entries) == (_STREAMS, 100 * _A_BATCH)
