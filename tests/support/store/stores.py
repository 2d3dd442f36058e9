"""A store without a server: an engine under a clock that stands still, and its contents in comparable form."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from riverbed.server.commands.dispatch import find_command
from riverbed.server.commands.replay import Replayer, unconnected_session
from riverbed.server.commands.request import Request
from riverbed.store.check import check
from riverbed.store.databases.database import Database
from riverbed.store.databases.names import all_keys
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import Files
from riverbed.store.engine import Engine
from riverbed.store.format.idempotence import IidRow
from riverbed.store.groups.group import Group
from riverbed.store.groups.groups import Groups
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text, parse_id, unpack_id
from riverbed.store.log.commands import Piece
from riverbed.store.options import Fsync, Options
from riverbed.store.progress import Progress, ignore
from riverbed.store.rewrite.state import pieces
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.streams.stream import Stream
from riverbed.store.streams.view import StreamView
from riverbed.store.tables.view import View
from tests.support.in_process import HandClock


def sid(text: str) -> StreamID:
    entry_id = parse_id(text.encode())
    assert entry_id is not None
    return entry_id


def finished(work: Generator[None, None, int]) -> int:
    """What counting in slices comes to."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return int(done.value)


class Store:
    """An engine in `directory`; `options` are those of `store.engine.Options`."""

    def __init__(self, directory: Path, *, files: Files | None = None, **options: Any) -> None:
        self.directory = directory
        self.clock = HandClock()
        self.files = files
        defaults = {"fsync": Fsync.NO, "map_bytes": 1 << 28, "reserve_bytes": 0}
        self.options = Options(**(defaults | options))
        self.open()

    def open(self, progress: Progress = ignore) -> None:
        self.engine = Engine.open(
            self.directory,
            execute=Replayer().execute,
            clock=self.clock,
            options=self.options,
            files=self.files,
            progress=progress,
        )

    @property
    def txn(self) -> WriteTxn:
        return self.engine.txn

    @property
    def db(self) -> Database:
        return self.txn.databases[0]

    def stream(self, key: bytes = b"s", db: int = 0) -> Stream:
        """The stream at `key`, made when there is none."""
        database = self.txn.databases[db]
        return database.stream(key, self.clock.now_ms) or database.create(key)

    def groups(self, key: bytes = b"s", db: int = 0) -> Groups:
        return self.txn.databases[db].groups(self.stream(key, db))

    def add(self, key: bytes, *ids: str, words: tuple[bytes, ...] = (b"f", b"v"), db: int = 0) -> Stream:
        """Append an entry for each of `ids`."""
        stream = self.stream(key, db)
        for text in ids:
            stream.append_entry(sid(text), list(words))
        return stream

    def fill(self, key: bytes, count: int, db: int = 0) -> Stream:
        """Append entries 1-0, 2-0 ... up to `count`."""
        return self.add(key, *(f"{number}-0" for number in range(1, count + 1)), db=db)

    def run(self, *words: bytes | str | int, db: int = 0) -> Any:
        """Execute a client's command, within the open tick; -> what its handler returns.  Raises CommandError."""
        argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        command = find_command(argv)
        assert command is not None and command.accepts(len(argv)), argv
        session = unconnected_session(self.txn.databases[db])
        request = Request(session, self.txn)
        request.db, request.argv, request.now_ms, request.may_block = session.db, argv, self.clock.now_ms, False
        reply = command.handler(request)
        self.txn.end_command()
        return reply

    def deliver(self, key: bytes, count: int, group: str = "g", consumer: str = "Alice", db: int = 0) -> None:
        """Have a consumer read `count` entries through a group, which is made when there is none."""
        if self.groups(key, db).get(group.encode()) is None:
            self.run("XGROUP", "CREATE", key, group, "0", db=db)
        self.run("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", key, ">", db=db)

    # -- life ----------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        self.engine.commit(self.clock.now_ms)

    def checkpoint(self) -> None:
        self.commit()
        self.engine.checkpoint()

    @contextlib.contextmanager
    def view(self) -> Iterator[View]:
        """The tables as they are now."""
        self.checkpoint()
        view = View(self.engine.tables)
        try:
            yield view
        finally:
            view.release()

    def count_range(self, stream: Stream, start: StreamID, end: StreamID, most: int | None = None) -> int:
        """How many entries a view shows in a range."""
        with self.view() as view:
            return finished(StreamView(view, stream).count(start, end, most))

    def purge(self) -> None:
        while self.engine.purge(0.0):
            pass

    def kill(self) -> None:
        """Let go of the files as a process that dies; what the open tick logged is lost."""
        self.txn.log.clear()
        self.engine.abandon()

    def restart(self) -> None:
        self.commit()
        self.engine.close()
        self.open()

    def crash(self) -> None:
        self.commit()
        self.kill()
        self.open()

    def rebuild(self) -> None:
        """Lose the tables, and make them from the log alone."""
        self.commit()
        self.kill()
        shutil.rmtree(self.directory / "state")
        self.open()

    def violations(self) -> list[str]:
        """What the check finds after a clean stop."""
        self.commit()
        self.engine.close()
        try:
            return [str(violation) for violation in check(self.directory, files=self.files)]
        finally:
            self.open()

    # -- contents ------------------------------------------------------------------------------------------------------

    def count(self, table: str) -> int:
        """Rows of a table, those that wait for the purge included."""
        return int(self.txn.lmdb.stat(self.txn.handles[table])["entries"])

    def dump(self) -> dict[int, dict[bytes, Any]]:
        """Everything that clients can see, by database and key."""
        return {db.number: dump_database(db) for db in self.txn.databases if db.size}


def begin_file(engine: Engine) -> None:
    """Begin the next file of the log, durably, as a rewrite does."""
    engine.divide_log()
    engine.end_checkpoint()


def checkpoint_twice(engine: Engine) -> None:
    """So that even the commit that `tables/data_file/power_loss.py` goes back to has the present state."""
    for _ in range(2):
        engine.checkpoint()


def rewrite(store: Store, *, extensions: bool = True) -> list[Piece]:
    """What the rewrite makes of everything up to here."""
    store.checkpoint()
    tables = store.engine.tables
    with tables.env.begin() as txn:
        return list(pieces(tables, txn, extensions=extensions))


def dump_database(db: Database) -> dict[bytes, Any]:
    found = {}
    for key in all_keys(db, 0):
        stream = db.stream(key, 0)
        assert stream is not None
        found[key] = dump_stream(stream, db.groups(stream))
    assert len(found) == db.size
    assert sum(stream["expire_ms"] > 0 for stream in found.values()) == db.expiring
    return found


def dump_stream(stream: Stream, groups: Groups) -> dict[str, Any]:
    names = ("length", "first_id", "last_id", "last_live_id", "max_deleted_id", "entries_added", "expire_ms")
    settings = None
    if stream.idempotence is not None:
        settings = (stream.idempotence.duration_s, stream.idempotence.max_records)
    idempotence = Idempotence(stream)
    return {
        **{name: getattr(stream, name) for name in names},
        "entries": [(text_of(key), value) for key, value in stream.rows(MIN_ID, MAX_ID)],
        "groups": [dump_group(group) for group in groups],
        "settings": settings,
        "idempotence": (idempotence.tracked(), idempotence.records_added, idempotence.duplicates),
        "records": dump_records(stream),
    }


def dump_group(group: Group) -> dict[str, Any]:
    pending = [
        (entry.entry_id, entry.owner and entry.owner.name, entry.delivery_time_ms, entry.delivery_count)
        for entry in group.pending()
    ]
    assert len(pending) == group.pel_count
    consumers = [
        (
            consumer.name,
            consumer.seen_ms,
            consumer.active_ms,
            [entry.entry_id for entry in group.pending(consumer=consumer)],
        )
        for consumer in group.consumers.in_order()
    ]
    return {
        "name": group.name,
        "last_id": group.last_id,
        "entries_read": group.entries_read,
        "policy": group.policy,
        "lag": group.lag(),
        "pending": pending,
        "consumers": consumers,
    }


def claim_order(db: Database, key: bytes = b"s", name: bytes = b"g") -> list[StreamID]:
    """The pending entries of a group in the order in which CLAIM takes them; empty without such a group."""
    stream = db.stream(key, 0)
    group = None if stream is None else db.groups(stream).get(name)
    if group is None:
        return []
    return [row.entry_id for _, run in group.pel.by_time(b"") if run is not None for row in run.rows()]


def dump_records(stream: Stream) -> list[tuple[bytes, bytes, StreamID]]:
    """(pid digest, iid digest, id) of every idempotence record, sorted."""
    if stream.idempotence is None or not stream.idempotence.records_no:
        return []
    prefix = stream.idempotence.records_no.to_bytes(8, "big")
    cursor = stream.txn.lmdb.cursor(stream.txn.handles["idmp_ids"])
    found = []
    if cursor.set_range(prefix):
        for key, row in cursor.iternext():
            if not key.startswith(prefix):
                break
            found.append((key[8:24], key[24:], IidRow.unpack(key, row).entry_id))
    return found


def ids_of(store: Store, key: bytes = b"s") -> list[str]:
    """The IDs of a stream's entries, as text."""
    return [text_of(row_key) for row_key, _ in store.stream(key).rows(MIN_ID, MAX_ID)]


def text_of(row_key: bytes) -> str:
    """The ID in the key of an entry."""
    return id_text(unpack_id(row_key[8:])).decode()
