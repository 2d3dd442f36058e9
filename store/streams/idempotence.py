"""Idempotent production: records which entry belongs to a producer's idempotent id (iid).

A stream's records have a number of their own, `records_no`, so that dropping all of them (XCFGSET) is one note for the
purge.  The rows:

    idmp        records_no                            -> [duration_s, producers, records]
    idmp        records_no pid-digest                 -> [pid, records, next record_no]
    idmp        records_no pid-digest record_no       -> [iid, id], a queue, oldest first
    idmp_ids    records_no pid-digest iid-digest      -> record_no, id
    idmp_times  records_no id pid-digest record_no    -> nothing; oldest first, for the sweep

Only the sweep removes expired records, as in Redis: a look-up between the deadline and the sweep still finds them.

Source: the XADD, XCFGSET and XIDMPRECORD command pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from riverbed.store.errors import DamagedRowError
from riverbed.store.format import idempotence as idmp
from riverbed.store.format.streams import decode_stream_prefix, stream_prefix
from riverbed.store.ids import MAX_HALF, StreamID, id_ms, id_text
from riverbed.store.model import IdempotenceSettings
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.places import seek, seek_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import lmdb

    from riverbed.store.tables.writing.transaction import Transaction


class Idempotence:
    """The records of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._txn = stream.txn
        settings = stream.idempotence
        self._settings = IdempotenceSettings() if settings is None else settings

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def duration_s(self) -> int:
        duration = self._settings.duration_s
        return self._txn.idmp_duration_s if duration is None else duration

    @property
    def max_records(self) -> int:
        """How many records are kept for one producer."""
        most = self._settings.max_records
        return self._txn.idmp_max_records if most is None else most

    @property
    def records_added(self) -> int:
        return self._settings.records_added

    @property
    def duplicates(self) -> int:
        return self._settings.duplicates

    def tracked(self) -> tuple[int, int]:
        """-> the current numbers of (producers, records)."""
        found = self._totals()
        return found.producers, found.records

    def find(self, pid: bytes, iid: bytes) -> StreamID | None:
        """The entry of `iid` of producer `pid`; None when there is no record.

        Raises DamagedRowError, also when a row beside the place of the missing one has a damaged key: it would add an
        entry twice to believe that.
        """
        records_no = self._settings.records_no
        if not records_no:
            return None
        key = idmp.iid_key(idmp.producer_key(records_no, pid), iid)
        cursor = self._txn.cursor("idmp_ids")
        if cursor.set_key(key):
            return idmp.IidRow.unpack(key, cursor.value()).entry_id
        _compare_beside(cursor, key, idmp.IidRow.unpack)
        return None

    # -- mutators ------------------------------------------------------------------------------------------------------

    def record(self, pid: bytes, iid: bytes, entry_id: StreamID) -> None:
        """Record that `iid` of `pid` is `entry_id`; the producer's oldest record is dropped when there are too many.

        The caller has made sure that `iid` has no record.  Logs XIDMPRECORD, hidden from Redis 7, and before the first
        one XCFGSET with the server's settings, because they decide which records are dropped later.
        """
        txn, settings = self._txn, self._settings
        txn.change_begins()  # the oldest record may be damaged
        if settings.duration_s is None or settings.max_records is None:
            self._keep_settings()
        self._stream.idempotence = settings
        if not settings.records_no:
            settings.records_no = txn.next_stream_no
            txn.next_stream_no += 1
        duration_s, producers, records = self._totals()
        packed_producer = idmp.producer_key(settings.records_no, pid)
        row = txn.lmdb.get(packed_producer, db=txn.handles["idmp"])
        if row is None:
            _compare_beside(txn.cursor("idmp"), packed_producer, idmp.check_row)
            held, record_no = 0, 1
            producers += 1
        else:
            _, held, record_no = idmp.ProducerRow.unpack(packed_producer, row)
        packed_record = idmp.record_key(packed_producer, record_no)
        put = txn.lmdb.put
        put(packed_record, idmp.RecordRow(iid, entry_id).pack(packed_record), db=txn.handles["idmp"])
        iid_key = idmp.iid_key(packed_producer, iid)
        put(iid_key, idmp.IidRow(record_no, entry_id).pack(iid_key), db=txn.handles["idmp_ids"])
        put(idmp.record_time_key(packed_record, entry_id), b"", db=txn.handles["idmp_times"])
        producer = idmp.ProducerRow(pid, held + 1, record_no + 1)
        put(packed_producer, producer.pack(packed_producer), db=txn.handles["idmp"])
        _put_totals(txn, settings.records_no, idmp.RecordsRow(duration_s, producers, records + 1))
        settings.records_added += 1
        if held + 1 > self.max_records:
            _drop_record(txn, _oldest_record(txn, packed_producer)[0])
        self._stream.touch()
        words = [b"XIDMPRECORD", self._stream.key, pid, iid, id_text(entry_id)]
        txn.log_extension(self._stream.namespace.number, words)

    def replace(self, pid: bytes, iid: bytes, entry_id: StreamID) -> None:
        """As `record`, for an iid that has a record of another entry.

        This happens in a replay when a sweep had removed the old record: no sweep is logged, here or by Redis.
        """
        producer = idmp.producer_key(self._settings.records_no, pid)
        key = idmp.iid_key(producer, iid)
        row = self._txn.lmdb.get(key, db=self._txn.handles["idmp_ids"])
        assert row is not None, "the caller has found it"
        self._txn.change_begins()
        _drop_record(self._txn, idmp.record_key(producer, idmp.IidRow.unpack(key, row).record_no))
        self.record(pid, iid, entry_id)

    def _keep_settings(self) -> None:
        """Copy the server's settings to the stream, so that later changes of the server's have no effect on it."""
        settings = self._settings
        settings.duration_s, settings.max_records = self.duration_s, self.max_records
        words = [b"XCFGSET", self._stream.key, b"IDMP-DURATION", b"%d" % settings.duration_s]
        words += [b"IDMP-MAXSIZE", b"%d" % settings.max_records]
        self._txn.log_extension(self._stream.namespace.number, words)

    def count_duplicate(self) -> None:
        """Count an entry that a producer has sent again.  Logs XIDMPHIT, hidden from Redis."""
        self._settings.duplicates += 1
        self._stream.idempotence = self._settings
        self._stream.touch()
        self._txn.log_extension(self._stream.namespace.number, [b"XIDMPHIT", self._stream.key])

    def configure(self, duration_s: int | None, max_records: int | None) -> bool:
        """Change the settings that are not None; -> whether any has changed, which forgets all records.

        Logs XCFGSET, hidden from Redis 7.
        """
        words = [b"XCFGSET", self._stream.key]
        settings = self._settings
        # naming a setting that was the server's makes it the stream's own; no records depend on it yet
        if duration_s is not None and duration_s != settings.duration_s:
            settings.duration_s = duration_s
            words += [b"IDMP-DURATION", b"%d" % duration_s]
        if max_records is not None and max_records != settings.max_records:
            settings.max_records = max_records
            words += [b"IDMP-MAXSIZE", b"%d" % max_records]
        if len(words) == 2:
            return False
        if settings.records_no:
            self._txn.dead_rows.add_stream(settings.records_no)
            settings.records_no = 0
        self._stream.idempotence = settings
        self._stream.touch()
        self._txn.log_extension(self._stream.namespace.number, words)
        return True

    def set_counts(self, records_added: int, duplicates: int) -> None:
        """Set the counts of a rewritten log, which include dropped records.  Logs XIDMPCOUNTS, hidden from Redis."""
        self._settings.records_added, self._settings.duplicates = records_added, duplicates
        self._stream.idempotence = self._settings
        self._stream.touch()
        words = [b"XIDMPCOUNTS", self._stream.key, b"%d" % records_added, b"%d" % duplicates]
        self._txn.log_extension(self._stream.namespace.number, words)

    def _totals(self) -> idmp.RecordsRow:
        key = stream_prefix(self._settings.records_no)
        row = self._txn.lmdb.get(key, db=self._txn.handles["idmp"]) if self._settings.records_no else None
        return idmp.RecordsRow(self.duration_s, 0, 0) if row is None else idmp.RecordsRow.unpack(key, row)


def _compare_beside(cursor: lmdb.Cursor[bytes], key: bytes, unpack: Callable[[bytes, bytes], object]) -> None:
    """Compare the rows before and after the place of a missing one.  Raises DamagedRowError.

    A row whose key has a flipped bit mostly stays where it was.
    """
    if seek(cursor, key):
        unpack(*cursor.item())
    if seek_below(cursor, key):
        unpack(*cursor.item())


def content_iid(words: list[bytes]) -> bytes:
    """The iid of IDMPAUTO: 16 bytes that depend on the fields and values, not on their order.

    They combine the sum and the exclusive or of one XXH3-128 per pair, which do not depend on the order of the pairs.
    """
    sum_low = sum_high = xor_low = xor_high = 0
    for field, value in zip(words[::2], words[1::2], strict=True):
        digest = xxhash.xxh3_128_intdigest(field + len(field).to_bytes(8, "little") + value)
        low, high = digest & MAX_HALF, digest >> 64
        sum_low += low
        sum_high += high
        xor_low ^= low
        xor_high ^= high
    low = (sum_low & MAX_HALF) ^ _rotate_left(xor_high)
    high = (sum_high & MAX_HALF) ^ _rotate_left(xor_low)
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def _rotate_left(half: int) -> int:
    return (half << 1 | half >> 63) & MAX_HALF


def sweep(txn: Transaction, now_ms: int, expired: Callable[[], bool]) -> int:
    """Drop records older than their stream's duration until `expired()`; -> how many.

    The next call begins with the stream behind the one where this ends: of very many streams each has its turn.

    Not logged: every server sweeps by its own clock, and a record that is due may be used until it is dropped.  So a
    producer's records go in the order in which they were recorded, as they do when there are too many, also where their
    IDs have another: whatever was swept, the same ones are left of those that are not due.
    """
    times = txn.cursor("idmp_times")
    dropped = 0
    for records_no in _in_turn(times, txn.records_place):
        prefix = stream_prefix(records_no)
        row = txn.lmdb.get(prefix, db=txn.handles["idmp"])
        if row is not None:  # else dead, and half purged by an earlier version, which began with this row
            duration_s = idmp.RecordsRow.unpack(prefix, row).duration_s
            while (key := times.key()).startswith(prefix):
                packed_record, entry_id = idmp.decode_record_time_key(key)
                due_ms = now_ms - duration_s * 1000
                if id_ms(entry_id) > due_ms:
                    break
                oldest, oldest_id = _oldest_record(txn, idmp.producer_of(packed_record))
                if id_ms(oldest_id) > due_ms:
                    key += b"\0"  # this one goes behind that
                else:
                    _drop_record(txn, oldest)
                    dropped += 1
                    txn.swept = True
                if expired() or not seek(times, key):
                    break
        if expired():
            txn.records_place = stream_prefix(records_no + 1)
            return dropped
    txn.records_place = b""
    return dropped


def _in_turn(times: lmdb.Cursor[bytes], place: bytes) -> Iterator[int]:
    """Move `times` to the first record of each stream, from `place` on, then of those before it; -> their numbers."""
    for start, end in ((place, None), (b"", place)):
        while seek(times, start) and (end is None or times.key() < end):
            records_no = decode_stream_prefix(times.key())
            yield records_no
            start = stream_prefix(records_no + 1)


def _oldest_record(txn: Transaction, packed_producer: bytes) -> tuple[bytes, StreamID]:
    """-> the key of the producer's oldest record, and its entry."""
    cursor = txn.cursor("idmp")
    if not seek(cursor, idmp.record_key(packed_producer, 1)) or idmp.producer_of(cursor.key()) != packed_producer:
        raise DamagedRowError("an idempotence record")
    return cursor.key(), idmp.RecordRow.unpack(*cursor.item()).entry_id


def _drop_record(txn: Transaction, packed_record: bytes) -> None:
    """Delete one record from all three tables, and its producer's row with the producer's last record."""
    assert len(packed_record) == idmp.RECORD_KEY_BYTES
    table = txn.handles["idmp"]
    row = txn.lmdb.get(packed_record, db=table)
    if row is None:
        raise DamagedRowError("an idempotence record")
    iid, entry_id = idmp.RecordRow.unpack(packed_record, row)
    packed_producer = idmp.producer_of(packed_record)
    txn.lmdb.delete(packed_record, db=table)
    txn.lmdb.delete(idmp.iid_key(packed_producer, iid), db=txn.handles["idmp_ids"])
    txn.lmdb.delete(idmp.record_time_key(packed_record, entry_id), db=txn.handles["idmp_times"])
    records_no = decode_stream_prefix(packed_record)
    for observer in txn.observers:
        observer.record_dropped(records_no)
    packed_totals = stream_prefix(records_no)
    totals, producer = txn.lmdb.get(packed_totals, db=table), txn.lmdb.get(packed_producer, db=table)
    if totals is None or producer is None:
        raise DamagedRowError("the producer of an idempotence record")
    duration_s, producers, records = idmp.RecordsRow.unpack(packed_totals, totals)
    pid, held, next_no = idmp.ProducerRow.unpack(packed_producer, producer)
    if held == 1:
        txn.lmdb.delete(packed_producer, db=table)
        producers -= 1
    else:
        txn.lmdb.put(packed_producer, idmp.ProducerRow(pid, held - 1, next_no).pack(packed_producer), db=table)
    _put_totals(txn, records_no, idmp.RecordsRow(duration_s, producers, records - 1))


def _put_totals(txn: Transaction, records_no: int, totals: idmp.RecordsRow) -> None:
    key = stream_prefix(records_no)
    txn.lmdb.put(key, totals.pack(key), db=txn.handles["idmp"])
