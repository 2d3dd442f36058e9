"""The process that compares tables with their checksums.

    python -m riverbed.server.background.integrity.scrub_worker DIRECTORY MAP-BYTES

    {"damage": reason}                  the first hundred things that are wrong
    {"rows": 4096, "of": 1000000}       how far it is, a few times a second
    {"rows": 1000000, "damaged": 0}     the end

It opens the tables read only, as any other reader, and everything else has priority for the processor.  The pages come
first: LMDB trusts them, and broken ones can end the process that reads them, which is why it is not the server.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from riverbed.server.background.child import Server, work_for_server
from riverbed.server.background.worker_modules import SCRUB
from riverbed.store.check.pages import check_pages
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, scrub_step
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

# After a step of some milliseconds comes a pause that is so many times as long.
_ROWS_A_STEP: Final = 1024
_PAUSES_A_STEP: Final = 19
_MAX_PAUSE_S: Final = 0.2
_REPORT_S: Final = 0.2
_MAX_REASONS: Final = 100


def work(server: Server) -> None:
    """Make one pass."""
    parser = argparse.ArgumentParser(prog=SCRUB)
    parser.add_argument("directory", type=Path)
    parser.add_argument("map_bytes", type=int)
    asked = parser.parse_args()
    tables = Tables(asked.directory, asked.map_bytes, readonly=True)
    try:
        data = asked.directory / STATE_DIRECTORY / DATA_NAME
        with tables.env.begin():
            broken = [violation.reason for violation in check_pages(data, lambda: False, server.go_on)]
        if broken:
            for reason in broken[:_MAX_REASONS]:
                server.say(damage=reason)
            server.say(rows=0, damaged=len(broken))
        else:
            _walk(server, tables)
    finally:
        tables.close()


def _walk(server: Server, tables: Tables) -> None:
    with tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        total = sum(reader.count(table) for table in SCRUBBED_TABLES)
    rows = damaged = 0
    said_s = 0.0
    for table in SCRUBBED_TABLES:
        key: bytes | None = b""
        while key is not None:
            server.go_on()
            begun_s = time.monotonic()
            with tables.env.begin() as txn:
                step = scrub_step(TableReader(tables, txn), table, key, _ROWS_A_STEP)
            key = step.next_key
            rows += step.rows
            for reason in step.damage[: max(_MAX_REASONS - damaged, 0)]:
                server.say(damage=reason)
            damaged += len(step.damage)
            ended_s = time.monotonic()
            if ended_s - said_s >= _REPORT_S:
                said_s = ended_s
                server.say(rows=rows, of=total)
            time.sleep(min((ended_s - begun_s) * _PAUSES_A_STEP, _MAX_PAUSE_S))
    server.say(rows=rows, damaged=damaged)


if __name__ == "__main__":
    work_for_server(SCRUB, work)
