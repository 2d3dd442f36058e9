"""Does the data keep every promise of the store?  Walks all tables and the log and yields what is broken.

    meta    keys, names      each stream: entries, nodes     each group: pel    whole tables     log
    counts  one to another   in one pass over its rows       groups.py    nothing astray   readable

What is checked is the last checkpoint, read only: of a store that nobody uses, or beside its running server.  Steps are
generators that yield after every few rows, so that what they found goes out at once and memory stays bounded.

Knows no way to mend anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from store import format as fmt
from store import manifest as manifests
from store.check.groups import check_group_tables, check_groups
from store.check.view import Meta, Notes, Pass, View, Violation, integers, show, show_id
from store.errors import CorruptionError
from store.files import Files, OsFiles
from store.ids import MIN_ID, StreamID, id_text, pack_id, unpack_id
from store.log import DIRECTORY_NAME, FILE_NAME
from store.logreader import LogPosition, LogReader, list_parts
from store.tables import STATE_DIRECTORY, Tables
from store.trash import Kind

__all__ = ["Violation", "check"]

_MAP_BYTES: Final = 1 << 40
_DATABASES: Final = 16
# The tables whose keys begin with a stream's number, or with that of its idempotence records.
_ENTRY_TABLES: Final = ("entries", "nodes")
_RECORD_TABLES: Final = ("idmp", "idmp_ids", "idmp_times")
# Commands that are the same whichever database is selected.
_WITHOUT_DATABASE: Final = frozenset((b"MULTI", b"EXEC", b"SWAPDB", b"FLUSHALL", b"PING", b"REPLCONF"))


def check(
    directory: Path,
    *,
    log_directory: str = DIRECTORY_NAME,
    log_filename: str = FILE_NAME,
    files: Files | None = None,
) -> Iterator[Violation]:
    """Yield every promise that the data in `directory` breaks; nothing when it is sound.

    Raises VersionError, and OSError when it cannot be read at all.
    """
    position: LogPosition | None = None
    if (directory / STATE_DIRECTORY / "data.mdb").exists():
        for item in _check_state(directory):
            if isinstance(item, Violation):
                yield item
            else:
                position = item
    yield from _check_log(directory / log_directory, log_filename, files or OsFiles(), position)


def _check_state(directory: Path) -> Iterator[Violation | LogPosition]:
    """The violations of all tables, and the log position that LMDB holds."""
    try:
        tables = Tables(directory, _MAP_BYTES, readonly=True)
    except lmdb.NotFoundError:
        return  # a server was killed while it made them
    except lmdb.Error as error:
        yield Violation("lmdb", str(directory / STATE_DIRECTORY), str(error))
        return
    try:
        with tables.env.begin() as txn:
            view = View(tables, txn)
            for step in (_check_meta, _check_trash, _check_databases, _check_expiry, _check_records, _check_strays):
                for _ in step(view):
                    yield from view.drain()
                yield from view.drain()
                if view.meta is None:
                    return  # nothing was ever checkpointed, or nothing can be said
            assert view.meta is not None
            yield view.meta.position
    except lmdb.Error as error:
        yield Violation("lmdb", str(tables.path), str(error))
    finally:
        tables.close()


# -- meta and trash ----------------------------------------------------------------------------------------------------


def _check_meta(view: View) -> Pass:
    rows = {name: view.get("meta", name) for name in (b"counters", b"databases", b"position")}
    if all(row is None for row in rows.values()):
        for table in ("keys", "names", "entries", "groups", "pel", "trash"):
            if view.count(table):
                view.add(table, "", "holds rows, but nothing was ever checkpointed")
        return
    for name, row in rows.items():
        if row is None:
            view.add("meta", name.decode(), "is missing")
            return
    yield
    meta = view.decode("meta", "", _decode_meta, rows)
    if meta is None:
        return
    numbers = [keyspace_no for keyspace_no, _, _ in meta.databases]
    if len(set(numbers)) != _DATABASES:
        view.add("meta", "databases", f"{_DATABASES} different keyspaces expected, found {numbers}")
    if max(numbers) >= meta.next_keyspace_no:
        view.add("meta", "counters", f"next keyspace_no {meta.next_keyspace_no}, but {max(numbers)} is in use")
    view.set_meta(meta)


def _decode_meta(rows: dict[bytes, Any]) -> Meta:
    next_stream_no, next_group_no, next_keyspace_no = integers(fmt.unpack_row(rows[b"counters"]))
    databases = []
    for row in fmt.unpack_row(rows[b"databases"]):
        keyspace_no, size, expiring = integers(row)
        databases.append((keyspace_no, size, expiring))
    file_seq, position, offset, log_db = fmt.unpack_row(rows[b"position"])
    integers([position, offset, log_db + 1, abs(file_seq)])
    return Meta(next_stream_no, next_group_no, next_keyspace_no, databases, LogPosition(file_seq, position, offset))


def _check_trash(view: View) -> Pass:
    assert view.meta is not None
    for key, row in view.rows("trash"):
        yield
        name = view.decode("trash", show(key), fmt.decode_trash_key, key)
        values = view.decode("trash", str(name), _decode_note, view.notes, row)
        if name is None or values is None:
            continue
        kind, number = values
        if number >= view.next_no(kind):
            view.add("trash", str(name), f"speaks of {kind.name} {number}, a number not given out yet")
        if kind is Kind.KEYSPACE and view.is_live_keyspace(number):
            view.add("trash", str(name), f"keyspace {number} is to be purged, and a database uses it")


def _decode_note(notes: Notes, row: bytes) -> tuple[Kind, int]:
    kind, *values = fmt.unpack_row(row)
    notes.add(Kind(kind), values)
    return Kind(kind), values[0]


# -- keys and their streams --------------------------------------------------------------------------------------------


def _check_databases(view: View) -> Pass:
    """Both directions between `keys` and `names`, the counts of databases, and each stream on the way."""
    assert view.meta is not None
    sizes: dict[int, int] = {}
    expiring: dict[int, int] = {}
    for packed, row in view.rows("keys"):
        yield
        key = show(packed)
        home = view.decode("keys", key, fmt.decode_key_key, packed)
        stream = view.decode("keys", key, _decode_stream, row)
        if home is None or stream is None:
            continue
        keyspace_no, name = home
        if not view.is_live_keyspace(keyspace_no):
            if keyspace_no not in view.notes.keyspaces:
                view.add("keys", key, f"keyspace {keyspace_no} is no database's, and not to be purged either")
            elif stream.idempotence is not None:
                view.records.add(stream.idempotence[2])
            continue
        if name is None:
            name = stream.long_key
            if name is None or fmt.key_key(keyspace_no, name) != packed:
                view.add("keys", key, "is not the digest of the key in the row")
                continue
        elif stream.long_key is not None:
            view.add("keys", key, "a short key stands in the row as well")
        sizes[keyspace_no] = sizes.get(keyspace_no, 0) + 1
        expiring[keyspace_no] = expiring.get(keyspace_no, 0) + (stream.expire_ms > 0)
        if view.get("names", fmt.name_key(keyspace_no, stream.stream_no)) != name:
            view.add("names", f"keyspace {keyspace_no}, stream {stream.stream_no}", f"does not name {show(name)}")
        if stream.expire_ms:
            deadline = view.get("expiry", fmt.expiry_key(stream.expire_ms, stream.stream_no))
            if deadline != fmt.encode_keyspace_no(keyspace_no):
                view.add("expiry", show(name), f"the deadline {stream.expire_ms} is not in the list")
        yield from _check_stream(view, show(name), stream)

    names: dict[int, int] = {}
    for packed, name in view.rows("names"):
        yield
        place = view.decode("names", show(packed), fmt.decode_name_key, packed)
        if place is None:
            continue
        keyspace_no, stream_no = place
        if not view.is_live_keyspace(keyspace_no):
            if keyspace_no not in view.notes.keyspaces:
                view.add("names", show(name), f"keyspace {keyspace_no} is no database's, and not to be purged either")
            continue
        names[keyspace_no] = names.get(keyspace_no, 0) + 1
        row_behind = view.get("keys", fmt.key_key(keyspace_no, name))
        if row_behind is None:
            view.add("names", show(name), f"stream {stream_no} of keyspace {keyspace_no} has no row in `keys`")
        else:
            stream = view.decode("keys", show(name), _decode_stream, row_behind)
            if stream is not None and stream.stream_no != stream_no:
                view.add("names", show(name), f"is stream {stream.stream_no}, not {stream_no}")

    for number, (keyspace_no, size, deadlines) in enumerate(view.meta.databases):
        found = sizes.get(keyspace_no, 0), names.get(keyspace_no, 0)
        if found != (size, size):
            view.add("meta", f"database {number}", f"{size} keys counted, {found[0]} in `keys`, {found[1]} in `names`")
        if expiring.get(keyspace_no, 0) != deadlines:
            told = f"{deadlines} keys with a deadline counted, there are {expiring.get(keyspace_no, 0)}"
            view.add("meta", f"database {number}", told)


def _decode_stream(row: bytes) -> fmt.StreamRow:
    stream = fmt.decode_stream(row)
    integers(stream[i] for i, name in enumerate(stream._fields) if name not in ("long_key", "idempotence"))
    if stream.idempotence is not None:
        duration_s, max_records, *numbers = stream.idempotence
        integers([duration_s or 0, max_records or 0, *numbers])
        if len(numbers) != 3:
            raise ValueError(f"{stream.idempotence} are not the settings of idempotence")
    return stream


def _check_stream(view: View, key: str, stream: fmt.StreamRow) -> Pass:
    def broken(reason: str) -> None:
        view.add("keys", key, reason)

    assert view.meta is not None
    if stream.stream_no >= view.meta.next_stream_no:
        broken(f"stream_no {stream.stream_no}, and {view.meta.next_stream_no} is the next to be given out")
    if view.is_dead_number(stream.stream_no):
        broken(f"stream {stream.stream_no} is in use, and to be purged as well")
    if not 0 <= stream.tail_dead <= stream.tail_total:
        broken(f"{stream.tail_dead} of the {stream.tail_total} entries of the last node are gone")
    if stream.last_live_id > stream.last_id:
        broken(f"last_id {show_id(stream.last_id)} is below its newest entry {show_id(stream.last_live_id)}")
    if stream.entries_added < stream.length:
        broken(f"{stream.length} entries, but only {stream.entries_added} were ever added")
    _check_floor(view, key, stream)
    yield from _check_entries(view, key, stream)
    yield from check_groups(view, key, stream)
    if stream.idempotence is not None:
        yield from _check_idempotence(view, key, stream.idempotence)


def _check_floor(view: View, key: str, stream: fmt.StreamRow) -> None:
    """What lies below the floor is dead, and the trash knows it."""
    prefix = fmt.stream_prefix(stream.stream_no)
    purged_to = view.notes.floors.get(stream.stream_no, MIN_ID)
    for table in _ENTRY_TABLES:
        cursor = view.cursor(table)
        found = cursor.prev() if cursor.set_range(prefix + pack_id(stream.floor_id)) else cursor.last()
        if found and cursor.key().startswith(prefix):
            entry_id = unpack_id(cursor.key()[8:])
            if entry_id >= purged_to:
                told = f"is below the floor {show_id(stream.floor_id)} of {key}, and nobody is to purge it"
                view.add(table, _place(stream.stream_no, entry_id), told)


def _place(stream_no: int, entry_id: StreamID) -> str:
    return f"stream {stream_no}, {show_id(entry_id)}"


class _NodeCount:
    """One node, and what was found in it."""

    def __init__(self, first_id: StreamID, live: int, total: int, size: int, last_id: StreamID) -> None:
        self.first_id = first_id
        self.live = live
        self.total = total
        self.size = size
        self.last_id = last_id
        self.found = 0
        self.found_bytes = 0


def _check_entries(view: View, key: str, stream: fmt.StreamRow) -> Pass:
    """Entries and nodes side by side, from the floor on."""
    prefix = fmt.stream_prefix(stream.stream_no)
    nodes = _nodes(view, stream)
    node: _NodeCount | None = None
    coming = next(nodes, None)
    count = node_count = 0
    first_id = last_id = MIN_ID
    for packed, row in view.rows("entries", prefix, prefix + pack_id(stream.floor_id)):
        yield
        place = view.decode("entries", show(packed), fmt.decode_entry_key, packed)
        if place is None:
            continue
        entry_id = place[1]
        count += 1
        first_id = first_id if count > 1 else entry_id
        last_id = entry_id
        while coming is not None and coming.first_id <= entry_id:
            _finish_node(view, stream, node, coming)
            node, coming = coming, next(nodes, None)
            node_count += 1
        if node is None or entry_id > node.last_id:
            view.add("entries", _place(stream.stream_no, entry_id), "is in no node")
        else:
            node.found += 1
        words = view.decode("entries", _place(stream.stream_no, entry_id), _count_words, entry_id, row)
        if words is not None and node is not None:
            node.found_bytes += len(row) - len(fmt.id_bulk(entry_id)) - len(fmt.array_head(words))
    while node is not None or coming is not None:
        yield
        _finish_node(view, stream, node, coming)
        node_count += coming is not None
        node, coming = coming, next(nodes, None)

    found = (count, first_id, last_id)
    told = (stream.length, stream.first_id, stream.last_live_id)
    if found != told:
        real, claimed = (
            f"{length} entries from {show_id(first)} to {show_id(last)}" for length, first, last in (found, told)
        )
        view.add("keys", key, f"{claimed}, but there are {real}")
    if node_count != stream.node_count + (stream.tail_total > 0):
        view.add("keys", key, f"{stream.node_count} closed nodes counted, {node_count} found with the last one")


def _count_words(entry_id: StreamID, row: bytes) -> int:
    """The number of words of an entry.  ValueError if the row is not the RESP that a reader can be sent."""
    text, words = fmt.decode_entry(row)
    if text != id_text(entry_id):
        raise ValueError(f"is the row of {text.decode(errors='replace')}")
    if not words or len(words) % 2:
        raise ValueError(f"{len(words)} words are not fields with values")
    if fmt.encode_entry(entry_id, words) != row:
        raise ValueError("a length is written in an unusual way")
    return len(words)


def _nodes(view: View, stream: fmt.StreamRow) -> Iterator[_NodeCount]:
    """The closed nodes above the floor, and the one that the stream's row holds."""
    prefix = fmt.stream_prefix(stream.stream_no)
    for packed, row in view.rows("nodes", prefix, prefix + pack_id(stream.floor_id)):
        first_id = unpack_id(packed[8:])
        values = view.decode("nodes", _place(stream.stream_no, first_id), fmt.decode_node, row)
        if values is not None:
            yield _NodeCount(first_id, *values)
    if stream.tail_total:
        live = stream.tail_total - stream.tail_dead
        yield _NodeCount(stream.tail_first_id, live, stream.tail_total, stream.tail_bytes, stream.tail_last_id)


def _finish_node(view: View, stream: fmt.StreamRow, node: _NodeCount | None, following: _NodeCount | None) -> None:
    if node is None:
        return

    def broken(reason: str) -> None:
        view.add("nodes", _place(stream.stream_no, node.first_id), reason)

    if node.found != node.live:
        broken(f"{node.live} live entries counted, there are {node.found}")
    if not 0 <= node.live <= node.total or node.total < 1:
        broken(f"{node.live} live entries of {node.total}")
    if node.found_bytes > node.size or (node.live == node.total and node.found_bytes != node.size):
        broken(f"{node.size} bytes counted, there are {node.found_bytes}")
    if node.last_id < node.first_id or (following is not None and following.first_id <= node.last_id):
        broken(f"ends at {show_id(node.last_id)}, where it has not begun or the next one has")
    if node.last_id > stream.last_id:
        broken(f"ends at {show_id(node.last_id)}, above the stream's last_id {show_id(stream.last_id)}")


# -- idempotence -------------------------------------------------------------------------------------------------------


def _check_idempotence(view: View, key: str, settings: list[Any]) -> Pass:
    _, _, records_no, records_added, _ = settings
    if not records_no:
        return
    assert view.meta is not None
    if records_no >= view.meta.next_stream_no:
        view.add("keys", key, f"records_no {records_no}, and {view.meta.next_stream_no} is the next to be given out")
    if view.is_dead_number(records_no):
        view.add("keys", key, f"the records {records_no} are in use, and to be purged as well")
    if records_no in view.records:
        view.add("keys", key, f"the records {records_no} are another stream's as well")
    view.records.add(records_no)
    where = f"records {records_no}"
    producers = records = held = held_told = next_no = 0
    counted: tuple[int, int] | None = None
    producer = b""

    def finish_producer() -> None:
        if held != held_told:
            view.add(
                "idmp", f"{where}, producer {show(producer[8:])}", f"{held_told} records counted, there are {held}"
            )

    for packed, row in view.rows("idmp", fmt.stream_prefix(records_no)):
        yield
        if len(packed) == fmt.RECORD_KEY_BYTES:
            held += 1
            records += 1
            if not producer or not packed.startswith(producer):
                view.add("idmp", show(packed), "a record without its producer")
            elif fmt.decode_record_no(packed) >= next_no:
                view.add("idmp", show(packed), f"record_no not below {next_no}, the next to be given out")
            view.decode("idmp", show(packed), _check_record, view, packed, row)
        elif len(packed) == fmt.PRODUCER_KEY_BYTES:
            finish_producer()
            producer, held, held_told, next_no = packed, 0, 0, 0
            producers += 1
            values = view.decode("idmp", show(packed), _decode_producer, packed, row)
            if values is not None:
                held_told, next_no = values
        else:
            counted = view.decode("idmp", show(packed), _decode_header, row)
    finish_producer()
    if counted != (producers, records):
        view.add("idmp", where, f"(producers, records) counted: {counted}, there are {(producers, records)}")
    if records > records_added:
        view.add("keys", key, f"{records} idempotence records, but only {records_added} were ever added")
    for table in ("idmp_ids", "idmp_times"):
        found = 0
        for _ in view.rows(table, fmt.stream_prefix(records_no)):
            found += 1
            yield
        if found != records:
            view.add(table, where, f"{found} rows for {records} records")


def _decode_header(row: bytes) -> tuple[int, int]:
    """-> (producers, records)"""
    _, producers, records = integers(fmt.unpack_row(row))
    return producers, records


def _decode_producer(packed: bytes, row: bytes) -> tuple[int, int]:
    """-> (records, record_no to be given out next)"""
    pid, *numbers = fmt.unpack_row(row)
    if fmt.producer_key(fmt.decode_stream_prefix(packed), pid) != packed:
        raise ValueError("the key is not the digest of the producer in the row")
    records, next_no = integers(numbers)
    return records, next_no


def _check_record(view: View, packed: bytes, row: bytes) -> None:
    iid, packed_id = fmt.unpack_row(row)
    entry_id = unpack_id(packed_id)
    producer, record_no = packed[: fmt.PRODUCER_KEY_BYTES], fmt.decode_record_no(packed)
    if view.get("idmp_ids", fmt.iid_key(producer, iid)) != fmt.encode_record_id(record_no, entry_id):
        view.add("idmp_ids", show(packed), "the record is not found by its id")
    if view.get("idmp_times", fmt.record_time_key(packed, entry_id)) is None:
        view.add("idmp_times", show(packed), "the record is not found by its age")


# -- whole tables ------------------------------------------------------------------------------------------------------


def _check_expiry(view: View) -> Pass:
    """Deadlines of keys; those of flushed databases may stay until they pass."""
    assert view.meta is not None
    for packed, row in view.rows("expiry"):
        yield
        key = show(packed)
        deadline = view.decode("expiry", key, fmt.decode_expiry_key, packed)
        keyspace_no = view.decode("expiry", key, fmt.decode_keyspace_no, row)
        if deadline is None or keyspace_no is None:
            continue
        deadline_ms, stream_no = deadline
        if keyspace_no >= view.meta.next_keyspace_no:
            view.add("expiry", key, f"keyspace {keyspace_no} was never given out")
        if not view.is_live_keyspace(keyspace_no):
            continue
        name = view.get("names", fmt.name_key(keyspace_no, stream_no))
        stream_row = None if name is None else view.get("keys", fmt.key_key(keyspace_no, name))
        stream = None if stream_row is None else view.decode("keys", key, _decode_stream, stream_row)
        if stream is None or stream.expire_ms != deadline_ms:
            view.add("expiry", key, f"no key of keyspace {keyspace_no} has the deadline {deadline_ms}")


def _check_records(view: View) -> Pass:
    """Idempotence records belong to a stream, or wait for the purge."""
    assert view.meta is not None
    for table in _RECORD_TABLES:
        for records_no in view.heads(table):
            yield
            if records_no in view.records or view.is_dead_number(records_no):
                continue
            view.add(table, f"records {records_no}", "are no stream's, and not to be purged either")


def _check_strays(view: View) -> Pass:
    """Rows under a number that no key has are dead, and the trash knows it."""
    assert view.meta is not None
    for table in _ENTRY_TABLES:
        for stream_no in view.heads(table):
            yield
            if not view.is_live_stream(stream_no) and not view.is_dead_stream(stream_no):
                view.add(table, f"stream {stream_no}", "belongs to no key, and is not to be purged either")
            if stream_no >= view.meta.next_stream_no:
                view.add(table, f"stream {stream_no}", "is a number not given out yet")
    yield from check_group_tables(view)


# -- the log -----------------------------------------------------------------------------------------------------------


def _check_log(home: Path, filename: str, files: Files, position: LogPosition | None) -> Iterator[Violation]:
    """Every batch is readable, every file chooses its databases itself, and nothing is missing that LMDB covers.

    A torn tail is what a crash leaves and no violation.
    """
    file = ""
    try:
        manifest = manifests.load(home / f"{filename}.manifest", files)
        if manifest is None or not manifest.files:
            if position is not None:
                yield Violation("log", str(home), "there is none, and the tables say how far they cover it")
            return
        reader = LogReader(list_parts(home, manifest, files), files)
        needs_select = False
        for batch in reader.batches(None, position):
            needs_select = batch.time_ms is not None and (needs_select or batch.file != file)
            file = batch.file
            for words in batch.commands if needs_select else ():
                name = words[0].upper()
                if name not in _WITHOUT_DATABASE:
                    needs_select = False
                    if name != b"SELECT":
                        yield Violation("log", f"{file} at byte {batch.start}", "no SELECT before a command needs it")
                    break
    except CorruptionError as error:
        place = error.file if error.offset is None else f"{error.file} at byte {error.offset}"
        yield Violation("log", place, error.reason)
