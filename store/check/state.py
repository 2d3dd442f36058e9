"""The part of the check that opens the tables and walks them in order: pages, `meta`, `trash`, then the rest.

pages     meta, trash    keys, names      each stream: entries, nodes     each group: pel     whole tables
in file   read first     each in both     in one pass over its rows       three that agree    no stray rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.check.findings import (
    Contents,
    Meta,
    Pass,
    View,
    Violation,
    require_integers,
    show,
    violation_of,
)
from riverbed.store.check.groups import check_group_tables
from riverbed.store.check.keys import check_databases, check_expiry, check_strays
from riverbed.store.check.pages import check_pages
from riverbed.store.check.records import check_record_tables
from riverbed.store.disk.real_files import is_there, require_plain
from riverbed.store.errors import CorruptionError
from riverbed.store.format import dead_rows
from riverbed.store.format.meta import (
    META_COUNTERS,
    META_DATABASES,
    META_NUMBERING,
    META_POSITION,
    META_READERS,
    META_REPLICATION,
    META_STORE,
    META_SYNCED,
    META_VERSION,
    read_counters,
    read_databases,
    read_numbering,
    read_position,
    read_replication,
    read_store_id,
    read_synced,
)
from riverbed.store.layout import DATA_NAME, LOCK_NAME, STATE_DIRECTORY
from riverbed.store.progress import Progress
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.data_file.opening import MAX_READERS
from riverbed.store.tables.environment import TABLES, Tables

MAP_BYTES: Final = 1 << 40
CHECKING_PAGES: Final = "checking pages"
CHECKING_ROWS: Final = "checking rows"

_DATABASES: Final = 16
_STEPS: Final = (check_databases, check_expiry, check_record_tables, check_strays, check_group_tables)


def check_state(
    directory: Path, is_stable: Callable[[], bool], contents: Contents, steps: Progress
) -> Iterator[Violation | Meta]:
    """Yield the violations of the tables in `directory`, and what `meta` holds, if anything.

    Raises VersionError, DoubtError, OSError, and lmdb.Error when the data is not the reason for LMDB's error.
    """
    data = directory / STATE_DIRECTORY / DATA_NAME
    require_plain(data.parent)
    if not data.stat().st_size:
        return  # a server was killed while it made the tables
    power_loss.refuse_doubt(data.parent)  # else what a power cut took of the last commit would pass for damage

    def waiting() -> None:
        steps(CHECKING_PAGES, 0, 0)

    waiting()
    damage = list(check_pages(data, lambda: True, waiting))
    if damage and is_stable():
        yield from damage
        return  # LMDB might crash on these pages
    try:
        tables = Tables(directory, MAP_BYTES, readonly=True)
    except lmdb.NotFoundError:
        yield from _missing_tables(directory)
        return
    except CorruptionError as error:
        yield violation_of("lmdb", error)
        return
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        yield Violation("lmdb", "", str(error), str(data))
        return
    try:
        if damage:
            with tables.env.begin():
                damage = list(check_pages(data, lambda: False, waiting))
            if damage:
                yield from damage
                return
        yield from check_tables(tables, contents, steps)
    finally:
        tables.close()


def _missing_tables(directory: Path) -> Iterator[Violation]:
    """Yield a violation for each missing table, if others hold rows.

    Tables are made one by one before any row is written; a table that is missing later was lost.
    """
    path = directory / STATE_DIRECTORY
    lock = is_there(path / LOCK_NAME)
    env = lmdb.open(
        str(path),
        map_size=MAP_BYTES,
        max_dbs=len(TABLES) + 3,
        max_readers=MAX_READERS,
        readonly=True,
        create=False,
        lock=lock,
    )
    try:
        missing, has_rows = [], False
        for name in TABLES:
            try:
                handle = env.open_db(name.encode(), create=False)
            except lmdb.Error:
                missing.append(name)
                continue
            with env.begin() as txn:
                has_rows |= name != "meta" and txn.stat(handle)["entries"] > 0
                has_rows |= name == "meta" and txn.get(META_POSITION, db=handle) is not None
        for name in missing if has_rows else ():
            yield Violation(name, "", "the table is missing", str(path / DATA_NAME))
    finally:
        env.close()


def check_tables(tables: Tables, contents: Contents, steps: Progress) -> Iterator[Violation | Meta]:
    """Yield the violations of open tables, as one transaction sees them; counts rows into `contents`."""
    try:
        with tables.env.begin() as txn:
            view = View(tables, txn, contents)
            total = sum(view.count(name) for name in TABLES)
            for step in (_check_meta, _check_trash, *_STEPS):
                for _ in step(view):
                    yield from view.drain()
                    steps(CHECKING_ROWS, min(view.walked, total), total)
                yield from view.drain()
                if view.meta is None:
                    return  # nothing was ever checkpointed, or `meta` is broken
            assert view.meta is not None
            yield view.meta
    except lmdb.Error as error:
        yield Violation("lmdb", "", str(error), str(tables.path / DATA_NAME))


def _check_meta(view: View) -> Pass:
    for name, _ in view.rows("meta"):
        if name not in META_READERS:
            view.add("meta", name.decode(errors="backslashreplace"), "is no row of this table")
    rows = {name: view.meta_row(name) for name in (META_COUNTERS, META_DATABASES, META_POSITION)}
    if all(row is None for row in rows.values()):
        for table in ("keys", "names", "entries", "groups", "pel", "trash"):
            if view.count(table):
                view.add(table, "", "holds rows, but no checkpoint was ever made")
        return
    rows[META_VERSION] = view.meta_row(META_VERSION)
    for name, row in rows.items():
        if row is None:
            view.add("meta", name.decode(), "is missing")
            if name != META_VERSION:
                return
    yield
    view.decode("meta", META_REPLICATION.decode(), read_replication, view.meta_row)
    view.decode("meta", META_STORE.decode(), _check_store_id, view)
    view.decode("meta", META_SYNCED.decode(), _check_synced, view)
    view.decode("meta", META_NUMBERING.decode(), read_numbering, view.meta_row)
    meta = view.decode("meta", "", _decode_meta, view)
    if meta is None:
        return
    numbers = [keyspace_no for keyspace_no, _, _ in meta.databases]
    if len(numbers) != _DATABASES or len(set(numbers)) != _DATABASES:
        view.add("meta", "databases", f"{_DATABASES} different keyspaces expected, found {numbers}")
        return
    if max(numbers) >= meta.next_keyspace_no:
        view.add("meta", "counters", f"next keyspace_no {meta.next_keyspace_no}, but {max(numbers)} is in use")
    view.set_meta(meta)


def _decode_meta(view: View) -> Meta:
    get = view.meta_row
    counters, databases, position = read_counters(get), read_databases(get), read_position(get)
    assert counters is not None and position is not None, "looked for before"
    require_integers(counters)
    for database in databases:
        require_integers(database)
    require_integers([position.byte, position.offset, position.selected + 1, abs(position.file_seq)])
    if position.selected >= _DATABASES:
        raise ValueError(f"there is no database {position.selected}")
    has_replids, has_store = (get(name) is not None for name in (META_REPLICATION, META_STORE))
    return Meta(*counters, databases, position.place, position.selected, has_replids, has_store)


def _check_store_id(view: View) -> None:
    ReplicationIds.new(read_store_id(view.meta_row))


def _check_synced(view: View) -> None:
    synced = read_synced(view.meta_row)
    if synced is not None:
        require_integers([abs(synced.file_seq), synced.position, synced.offset])


def _check_trash(view: View) -> Pass:
    assert view.meta is not None
    for key, row in view.rows("trash"):
        yield
        name = view.decode("trash", show(key), dead_rows.decode_note_key, key)
        note = view.decode("trash", str(name), _decode_note, row)
        if name is None or note is None:
            continue
        view.notes.add(note)
        noun, number, next_no = _subject(note, view.meta)
        if number >= next_no:
            view.add("trash", str(name), f"speaks of {noun} {number}, a number not given out yet")
        if isinstance(note, dead_rows.DeadKeyspace) and view.is_live_keyspace(number):
            view.add("trash", str(name), f"keyspace {number} is to be purged, and a database uses it")


def _decode_note(row: bytes) -> dead_rows.DeadRows:
    note = dead_rows.unpack_note(row)
    require_integers(note)
    return note


def _subject(note: dead_rows.DeadRows, meta: Meta) -> tuple[str, int, int]:
    """-> (the kind of object that the note names, its number, the next number of this kind to be given out)"""
    match note:
        case dead_rows.DeadStream(stream_no) | dead_rows.DeadRange(stream_no, _):
            return "stream", stream_no, meta.next_stream_no
        case dead_rows.DeadKeyspace(keyspace_no):
            return "keyspace", keyspace_no, meta.next_keyspace_no
        case dead_rows.DeadGroup(group_no, _) | dead_rows.DeadConsumer(group_no, _):
            return "group", group_no, meta.next_group_no
