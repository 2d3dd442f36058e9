"""The process that makes tables again of the log, while the server goes on with those that it has.

    python -m riverbed.server.background.integrity.repair_worker \\
        DIRECTORY MAP-BYTES NODE-ENTRIES NODE-BYTES LEAVE-BYTES STREAM-NO

    server                                      this process
    makes repair/
    {"replay": [file, byte, offset]}        ->  executes DIRECTORY's log up to there, which is on the disk, into repair/
                                            <-  {"step": s, "done": b, "total": b}     a few times a second: bytes
                                            <-  {"at": [file, byte, offset]}           on the disk
                                            <-  {"damaged": reason}                    instead: this log makes no tables
    {"check": true}                         ->  compares what it has made with its checksums
                                            <-  {"sound": true}
    ... "replay" again, as often as the server likes, then the end of the input

The streams are numbered from STREAM-NO on.  Every batch of the log is compared with its checksum.  The server deletes
repair/ when this has failed.  The process works there, by relative paths, see `Server.work_in`: one that outlives its
server does nothing in the place of the next one.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

import lmdb

from riverbed.server.background.child import Reports, Server, work_for_server
from riverbed.server.background.worker_modules import REPAIR
from riverbed.server.commands.replay import Replayer
from riverbed.store.check.findings import Contents, Violation
from riverbed.store.check.state import check_state
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError, ReplayError, StoreError
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST, REPAIR_DIRECTORY, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests
from riverbed.store.log.reader import LogReader, list_parts, parts_up_to
from riverbed.store.position import LogPosition
from riverbed.store.progress import counter
from riverbed.store.recovery.replay import EXECUTING
from riverbed.store.recovery.tables_from_log import TablesFromLog, room_for_tables

# Less urgent than the server, which has clients; more urgent than idle work, for right answers are waited for.
_NICENESS: Final = 5


class Remaking:
    """The tables in `made`, made of the log in `directory`."""

    def __init__(
        self,
        directory: Path,
        made: Path,
        map_bytes: int,
        node_entries: int,
        node_bytes: int,
        leave_bytes: int,
        stream_no: int,
    ) -> None:
        self._home = directory / LOG_DIRECTORY
        self._made = made
        self._map_bytes = map_bytes
        self._node_size = node_entries, node_bytes
        self._leave_bytes = leave_bytes
        self._first_stream_no = stream_no
        self._files = OsFiles()

    def replay(self, end: LogPosition, reports: Reports) -> None:
        """Bring the tables up to `end`, durably.  Raises what reading and executing raise."""
        files = self._files
        manifest = manifests.load(self._home / LOG_MANIFEST, files)
        if manifest is None:
            raise StoreError("there is no log yet, as nothing was written")
        parts = parts_up_to(list_parts(self._home, manifest, files), end)
        if not files.exists(self._made / STATE_DIRECTORY):
            self._require_space(sum(part.size for part in parts))
        with TablesFromLog(self._made, Replayer().execute, files, map_bytes=self._map_bytes) as made:
            txn = made.txn
            txn.node_max_entries, txn.node_max_bytes = self._node_size
            txn.replids = manifest.replids
            txn.next_stream_no = max(txn.next_stream_no, self._first_stream_no)
            start = txn.position
            total = sum(part.size for part in parts if start is None or part.number >= start.file_seq)
            executed = counter(reports.step, EXECUTING, total - (0 if start is None else start.position))
            made.try_replay(LogReader(parts, files, load_truncated=False).batches(start, end), executed)
            txn.commit(end)
            made.make_durable()

    def _require_space(self, log_bytes: int) -> None:
        needed, free = room_for_tables(log_bytes) + self._leave_bytes, self._files.free_bytes(self._made)
        if free < needed:
            raise StoreError(f"{free:,} bytes are free, and executing the log may take {needed:,}")

    def check(self, reports: Reports) -> None:
        """Raise ReplayError when the tables that the log makes are damaged as well."""
        for found in check_state(self._made, lambda: True, Contents(), reports.step):
            if isinstance(found, Violation):
                raise ReplayError(f"the tables that the log makes are broken as well ({found})")


def work(server: Server) -> None:
    """Replay and check as the server asks."""
    directory, *numbers = sys.argv[1:]
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    server.work_in(Path(directory, REPAIR_DIRECTORY))
    remaking = Remaking(Path(directory), Path(), *map(int, numbers))
    reports = Reports(server)
    try:
        while True:
            order = server.listen()
            if "replay" in order:
                remaking.replay(LogPosition(*order["replay"]), reports)
                server.say(at=order["replay"])
            else:
                remaking.check(reports)
                server.say(sound=True)
    except (CorruptionError, ReplayError) as error:
        server.say(damaged=" ".join(str(error).split()))
    except lmdb.MapFullError:
        raise StoreError("lmdb-map-size is too small for what the log holds") from None


if __name__ == "__main__":
    work_for_server(REPAIR, work)
