"""The part of the check that walks idempotence records: three tables that must agree, under a number of their own."""

from __future__ import annotations

from functools import partial
from typing import Final

from riverbed.store.check.findings import Pass, View, require_integers, show
from riverbed.store.format import idempotence as idmp
from riverbed.store.format.streams import decode_stream_prefix, stream_prefix
from riverbed.store.model import IdempotenceSettings

# The tables whose keys begin with the number of a stream's records.
_RECORD_TABLES: Final = ("idmp", "idmp_ids", "idmp_times")


def check_stream_records(view: View, key: str, settings: IdempotenceSettings) -> Pass:
    """Check the records of one stream, whose row holds `settings`."""
    records_no = settings.records_no
    if not records_no:
        return
    _check_number(view, key, records_no)
    where = f"records {records_no}"
    producers = records = held = held_stated = next_no = 0
    totals: idmp.RecordsRow | None = None
    producer = b""

    def finish_producer() -> None:
        if held != held_stated:
            view.add("idmp", f"{where}, producer {show(producer)}", f"{held_stated} records counted, there are {held}")

    for packed, row in view.rows("idmp", stream_prefix(records_no)):
        yield
        if len(packed) == idmp.RECORD_KEY_BYTES:
            held += 1
            records += 1
            if not producer or not packed.startswith(producer):
                view.add("idmp", show(packed), "a record without its producer")
            elif idmp.decode_record_no(packed) >= next_no:
                view.add("idmp", show(packed), f"record_no not below {next_no}, the next to be given out")
            view.decode("idmp", show(packed), _check_record, view, packed, row)
        elif len(packed) == idmp.PRODUCER_KEY_BYTES:
            finish_producer()
            producer, held, held_stated, next_no = packed, 0, 0, 0
            producers += 1
            values = view.decode("idmp", show(packed), _decode_producer, packed, row)
            if values is not None:
                held_stated, next_no = values.records, values.next_record_no
        else:
            totals = view.decode("idmp", show(packed), _decode_totals, packed, row)
            if totals is not None and totals.duration_s != settings.duration_s:
                reason = f"says that records live for {totals.duration_s} s, the stream for {settings.duration_s} s"
                view.add("idmp", where, reason)
    finish_producer()
    counted = None if totals is None else [totals.producers, totals.records]
    if counted != [producers, records]:
        view.add("idmp", where, f"[producers, records] counted: {counted}, there are {[producers, records]}")
    if records > settings.records_added:
        view.add("keys", key, f"{records} idempotence records, but only {settings.records_added} were ever added")
    for table in ("idmp_ids", "idmp_times"):
        found = 0
        for packed, row in view.rows(table, stream_prefix(records_no)):
            found += 1
            if row and table == "idmp_times":
                view.add(table, show(packed), "holds a value where none belongs")
            yield
        if found != records:
            view.add(table, where, f"{found} rows for {records} records")


def _check_number(view: View, key: str, records_no: int) -> None:
    """Check the number of the stream's records, which no other stream may have."""
    assert view.meta is not None
    if records_no >= view.meta.next_stream_no:
        view.add("keys", key, f"records_no {records_no}, and {view.meta.next_stream_no} is the next to be given out")
    if view.homes(records_no):
        view.add("keys", key, f"the records {records_no} have a stream's number")
    if view.is_dead_number(records_no):
        view.add("keys", key, f"the records {records_no} are in use, and to be purged as well")
    if records_no in view.records:
        view.add("keys", key, f"the records {records_no} are another stream's as well")
    view.records.add(records_no)


def _decode_totals(packed: bytes, row: bytes) -> idmp.RecordsRow:
    totals = idmp.RecordsRow.unpack(packed, row)
    require_integers(totals)
    return totals


def _decode_producer(packed: bytes, row: bytes) -> idmp.ProducerRow:
    producer = idmp.ProducerRow.unpack(packed, row)
    if idmp.producer_key(decode_stream_prefix(packed), producer.pid) != packed:
        raise ValueError("the key is not the digest of the producer in the row")
    require_integers([producer.records, producer.next_record_no])
    return producer


def _check_record(view: View, packed: bytes, row: bytes) -> None:
    record = idmp.RecordRow.unpack(packed, row)
    key = idmp.iid_key(idmp.producer_of(packed), record.iid)
    row_by_id = view.get("idmp_ids", key)
    found = None
    if row_by_id is not None:
        found = view.decode("idmp_ids", show(packed), partial(idmp.IidRow.unpack, key), row_by_id)
    if found != idmp.IidRow(idmp.decode_record_no(packed), record.entry_id):
        view.add("idmp_ids", show(packed), "the record is not found by its id")
    if view.get("idmp_times", idmp.record_time_key(packed, record.entry_id)) is None:
        view.add("idmp_times", show(packed), "the record is not found by its age")


def check_record_tables(view: View) -> Pass:
    """Check that all idempotence records belong to a stream, or wait for the purge."""
    assert view.meta is not None
    for table in _RECORD_TABLES:
        for records_no in view.heads(table):
            yield
            if records_no in view.records or view.is_dead_number(records_no):
                continue
            view.add(table, f"records {records_no}", "are no stream's, and not to be purged either")
