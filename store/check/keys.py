"""The part of the check that walks keys: their names and numbers, their deadlines, and rows that belong to no key."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from functools import partial
from typing import Final

from riverbed.store.check.findings import Pass, View, require_integers, show
from riverbed.store.check.streams import check_stream
from riverbed.store.format import streams

# The tables whose keys begin with a stream's number.
_ENTRY_TABLES: Final = ("entries", "nodes")


def check_databases(view: View) -> Pass:
    """Check `keys` against `names` in both directions, the counts of databases, and each stream on the way."""
    assert view.meta is not None
    sizes: Counter[int] = Counter()
    expiring: Counter[int] = Counter()
    names: Counter[int] = Counter()
    yield from _check_keys(view, sizes, expiring)
    yield from _check_names(view, names)
    for number, (keyspace_no, size, deadlines) in enumerate(view.meta.databases):
        found = sizes[keyspace_no], names[keyspace_no]
        if found != (size, size):
            view.add("meta", f"database {number}", f"{size} keys counted, {found[0]} in `keys`, {found[1]} in `names`")
        if expiring[keyspace_no] != deadlines:
            reason = f"{deadlines} keys with a deadline counted, there are {expiring[keyspace_no]}"
            view.add("meta", f"database {number}", reason)


def _check_keys(view: View, sizes: Counter[int], expiring: Counter[int]) -> Pass:
    """Check each row of `keys`, and its stream.  Counts by keyspace the rows, and the rows with a deadline."""
    for packed, row in view.rows("keys"):
        yield
        key = show(packed)
        home = view.decode("keys", key, streams.decode_key_key, packed)
        stream = view.decode("keys", key, partial(decode_stream, packed), row)
        if home is None or stream is None:
            continue
        keyspace_no, name = home
        if not view.is_live_keyspace(keyspace_no):
            if keyspace_no not in view.notes.keyspaces:
                view.add("keys", key, f"keyspace {keyspace_no} is no database's, and not to be purged either")
            elif stream.idempotence is not None:
                view.records.add(stream.records_no)
            continue
        if name is None:
            name = stream.long_key
            if name is None or streams.key_key(keyspace_no, name) != packed:
                view.add("keys", key, "is not the digest of the key in the row")
                continue
        elif stream.long_key is not None:
            view.add("keys", key, "a short key stands in the row as well")
        sizes[keyspace_no] += 1
        expiring[keyspace_no] += stream.expire_ms > 0
        if len(view.homes(stream.stream_no)) > 1:
            view.add("names", show(name), f"stream {stream.stream_no} has another name as well")
        if view.get("names", streams.name_key(keyspace_no, stream.stream_no)) != name:
            view.add("names", f"keyspace {keyspace_no}, stream {stream.stream_no}", f"does not name {show(name)}")
        if stream.expire_ms:
            listed = streams.expiry_key(stream.expire_ms, stream.stream_no)
            deadline = view.get("expiry", listed)
            listed_for = None
            if deadline is not None:
                listed_for = view.decode("expiry", show(name), streams.unpack_expiry, listed, deadline)
            if listed_for != keyspace_no:
                view.add("expiry", show(name), f"the deadline {stream.expire_ms} is not in the list")
        yield from check_stream(view, show(name), stream)


def _check_names(view: View, names: Counter[int]) -> Pass:
    """Check each row of `names`.  Counts them by keyspace."""
    for packed, name in view.rows("names"):
        yield
        place = view.decode("names", show(packed), streams.decode_name_key, packed)
        if place is None:
            continue
        keyspace_no, stream_no = place
        if not view.is_live_keyspace(keyspace_no):
            if keyspace_no not in view.notes.keyspaces:
                view.add("names", show(name), f"keyspace {keyspace_no} is no database's, and not to be purged either")
            continue
        names[keyspace_no] += 1
        key = streams.key_key(keyspace_no, name)
        row_behind = view.get("keys", key)
        if row_behind is None:
            view.add("names", show(name), f"stream {stream_no} of keyspace {keyspace_no} has no row in `keys`")
        else:
            stream = view.decode("keys", show(name), partial(decode_stream, key), row_behind)
            if stream is not None and stream.stream_no != stream_no:
                view.add("names", show(name), f"is stream {stream.stream_no}, not {stream_no}")


def decode_stream(key: bytes, row: bytes) -> streams.StreamRow:
    """Raises what `StreamRow.unpack` raises."""
    stream = streams.StreamRow.unpack(key, row)
    require_integers(stream[i] for i, name in enumerate(stream._fields) if name not in ("long_key", "idempotence"))
    if stream.idempotence is not None:
        require_integers(value or 0 for value in astuple(stream.idempotence))
    return stream


def check_expiry(view: View) -> Pass:
    """Check the deadlines of keys.  Deadlines of flushed databases may stay until they pass."""
    assert view.meta is not None
    for packed, row in view.rows("expiry"):
        yield
        key = show(packed)
        deadline = view.decode("expiry", key, streams.decode_expiry_key, packed)
        keyspace_no = view.decode("expiry", key, streams.unpack_expiry, packed, row)
        if deadline is None or keyspace_no is None:
            continue
        deadline_ms, stream_no = deadline
        if keyspace_no >= view.meta.next_keyspace_no:
            view.add("expiry", key, f"keyspace {keyspace_no} was never given out")
        if not view.is_live_keyspace(keyspace_no):
            continue
        name = view.get("names", streams.name_key(keyspace_no, stream_no))
        stream = None
        if name is not None:
            home = streams.key_key(keyspace_no, name)
            stream_row = view.get("keys", home)
            if stream_row is not None:
                stream = view.decode("keys", key, partial(decode_stream, home), stream_row)
        if stream is None or stream.expire_ms != deadline_ms:
            view.add("expiry", key, f"no key of keyspace {keyspace_no} has the deadline {deadline_ms}")


def check_strays(view: View) -> Pass:
    """Check that entries and nodes under a stream number that no key has are named in the trash."""
    assert view.meta is not None
    for table in _ENTRY_TABLES:
        for stream_no in view.heads(table):
            yield
            if not view.is_live_stream(stream_no) and not view.is_dead_stream(stream_no):
                view.add(table, f"stream {stream_no}", "belongs to no key, and is not to be purged either")
            if stream_no >= view.meta.next_stream_no:
                view.add(table, f"stream {stream_no}", "is a number not given out yet")
