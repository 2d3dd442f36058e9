from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverbed.store.format import rows as fmt
from riverbed.store.groups.consumers import Consumer
from riverbed.store.groups.group import Group
from riverbed.store.groups.pending import UNOWNED, Run, time_key
from riverbed.store.groups.recent_deliveries import HandedOut
from riverbed.store.ids import StreamID, make_id, pack_id, unpack_id
from riverbed.store.model import NO_POLICY, DeliveryPolicy
from riverbed.store.replication_id import NO_ID
from riverbed.store.tables import environment as tables
from tests.support.servers import ROOT

FORMAT = (ROOT / "store" / "FORMAT.md").read_text()

NUMBERS = st.integers(0, 2**64 - 1)
SMALL_NUMBERS = st.integers(0, 2**32 - 1)
IDS = st.integers(0, 2**128 - 1).map(StreamID)
DEADLINE_MS = 1_700_000_000_000


def read_hex(text: str) -> bytes:
    """`6b*401` is one byte 401 times; what follows `;` is for people."""
    found = b""
    for word in re.sub(";.*", "", text).split():
        digits, _, times = word.partition("*")
        found += bytes.fromhex(digits) * int(times or 1)
    return found


def examples(table: str) -> list[tuple[bytes, bytes]]:
    """The (key, row) examples that the document gives of a table, in order."""
    found = []
    for block in re.findall(rf"^```lmdb {table}\n(.*?)^```$", FORMAT, re.DOTALL | re.MULTILINE):
        key, row = re.fullmatch(r"key (.*)\nrow(.*?)", block, re.DOTALL).groups()
        found.append((read_hex(key.partition("\n")[0]), b"".join(map(read_hex, row.splitlines()))))
    assert found, f"FORMAT.md has no example of {table}"
    return found


def test_the_document_describes_every_table() -> None:
    assert set(re.findall(r"^```lmdb (\w+)$", FORMAT, re.MULTILINE)) == set(tables.TABLES)


def test_the_documents_streams_are_what_the_module_reads_and_writes() -> None:
    (short, short_row), (long, long_row) = examples("keys")
    stream = fmt.decode_stream(short_row)
    assert fmt.decode_key_key(short) == (0, b"s")
    assert fmt.key_key(0, b"s") == short
    assert stream == fmt.StreamRow(
        stream_no=7,
        long_key=None,
        length=2,
        entries_added=3,
        expire_ms=0,
        first_id=make_id(1, 1),
        last_id=make_id(3, 0),
        last_live_id=make_id(2, 5),
        max_deleted_id=make_id(1, 3),
        floor_id=StreamID(0),
        tail_first_id=make_id(1, 1),
        tail_last_id=make_id(2, 5),
        group_count=1,
        node_count=0,
        tail_total=3,
        tail_dead=1,
        tail_bytes=42,
        idempotence=None,
    )
    assert fmt.encode_stream(stream) == short_row

    stream = fmt.decode_stream(long_row)
    assert fmt.decode_key_key(long) == (0, None)
    assert stream.long_key == b"k" * 401
    assert fmt.key_key(0, stream.long_key) == long
    assert (stream.stream_no, stream.length, stream.expire_ms) == (8, 0, DEADLINE_MS)
    assert stream.idempotence == [60, None, 9, 1, 0]
    assert fmt.encode_stream(stream) == long_row


def test_the_documents_names_entries_nodes_and_deadlines() -> None:
    ((key, row),) = examples("names")
    assert (fmt.decode_name_key(key), row) == ((0, 7), b"s")
    assert fmt.name_key(0, 7) == key

    ((key, row),) = examples("entries")
    assert fmt.decode_entry_key(key) == (7, make_id(1, 1))
    assert fmt.entry_key(7, make_id(1, 1)) == key
    assert fmt.decode_entry(row) == (b"1-1", [b"f", b"v"])
    assert fmt.encode_entry(make_id(1, 1), [b"f", b"v"]) == row

    ((key, row),) = examples("nodes")
    assert fmt.decode_entry_key(key) == (7, make_id(1, 1))
    assert fmt.decode_node(row) == (98, 100, 1400, make_id(9, 4))
    assert fmt.encode_node(98, 100, 1400, make_id(9, 4)) == row

    ((key, row),) = examples("expiry")
    assert fmt.decode_expiry_key(key) == (DEADLINE_MS, 8)
    assert fmt.expiry_key(DEADLINE_MS, 8) == key
    assert fmt.decode_keyspace_no(row) == 0
    assert fmt.encode_keyspace_no(0) == row


def test_the_documents_idempotence_records() -> None:
    header, producer, record = examples("idmp")
    entry_id = make_id(5, 0)
    assert (header[0], fmt.unpack_row(header[1])) == (fmt.stream_prefix(9), [60, 1, 1])
    assert (producer[0], fmt.unpack_row(producer[1])) == (fmt.producer_key(9, b"p"), [b"p", 1, 2])
    assert (record[0], fmt.unpack_row(record[1])) == (fmt.record_key(producer[0], 1), [b"i", pack_id(entry_id)])
    assert fmt.decode_record_no(record[0]) == 1
    assert (len(producer[0]), len(record[0])) == (fmt.PRODUCER_KEY_BYTES, fmt.RECORD_KEY_BYTES)

    ((key, row),) = examples("idmp_ids")
    assert key == fmt.iid_key(producer[0], b"i")
    assert fmt.decode_record_id(row) == (1, entry_id)
    assert fmt.encode_record_id(1, entry_id) == row

    ((key, row),) = examples("idmp_times")
    assert (key, row) == (fmt.record_time_key(record[0], entry_id), b"")
    assert fmt.decode_record_time_key(key) == (record[0], entry_id)


class Nothing:
    """What stands in for a stream when only a group's row is read."""

    txn = None


def test_the_documents_group_and_consumer() -> None:
    (key, row), (consumer_key, consumer_row), (policy_key, policy_row) = examples("groups")
    group = Group.decode(Nothing(), fmt.decode_group_no(key), row, HandedOut())
    assert key == fmt.group_key(7, 3)
    assert (group.group_no, group.name, group.last_id, group.entries_read) == (3, b"g", make_id(2, 5), 2)
    assert (group.pel_count, group.released_count, group.consumer_count) == (3, 1, 1)
    assert group.policy is NO_POLICY
    assert group.encode() == row

    group = Group.decode(Nothing(), fmt.decode_group_no(policy_key), policy_row, HandedOut())
    assert (group.group_no, group.name, group.entries_read) == (4, b"h", 0)
    assert (group.policy, group.look_ms) == (DeliveryPolicy(5, b"dead", 1000), DEADLINE_MS)
    assert group.encode() == policy_row
    ((look_key, look_row),) = examples("consumer_ttls")
    assert fmt.look_key(group.look_ms, 7, group.group_no) == look_key
    assert fmt.decode_look_key(look_key) == (DEADLINE_MS, 7, 4)
    assert look_row == group.name

    consumer = Consumer(fmt.decode_consumer_no(consumer_key), *fmt.decode_consumer(consumer_row))
    assert consumer_key == fmt.consumer_key(7, 3, 1)
    assert fmt.decode_group_no(consumer_key) == 3
    assert (consumer.name, consumer.seen_ms, consumer.active_ms, consumer.pel_count) == (b"Alice", DEADLINE_MS, -1, 2)


def test_the_documents_pending_entries() -> None:
    (key, row), (released_key, released_row) = examples("pel")
    last_id = pack_id(make_id(2, 0))
    assert key == fmt.group_prefix(3) + last_id
    assert fmt.decode_run_head(row) == (1, DEADLINE_MS, 1)
    run = Run.decode(row)
    assert run.ids() == [pack_id(make_id(1, 1)), last_id]
    assert fmt.encode_run(1, DEADLINE_MS, 1, run.packed) == row
    released = Run.decode(released_row)
    assert (released.consumer_no, released.time_ms, released.delivery_count) == (UNOWNED, 4, 2)
    assert released.ids() == [released_key[8:]] == [pack_id(make_id(2, 5))]

    ((key, row),) = examples("pel_by_consumer")
    assert (key, row) == (fmt.owner_prefix(3, 1) + last_id, b"")
    assert fmt.decode_owner_no(key) == 1

    (key, row), (released_key, released_row) = examples("pel_by_time")
    assert (key, row) == (fmt.moment_prefix(3, DEADLINE_MS + 1) + last_id, b"") == (time_key(3, run), b"")
    assert released_key == fmt.moment_prefix(3, 0) + (4).to_bytes(16, "big") == time_key(3, released)
    assert unpack_id(released_row) == make_id(2, 5)


def test_the_documents_notes_and_meta_rows() -> None:
    notes = [[1, 6], [2, 7, pack_id(make_id(1, 1))], [3, 17], [4, 2, 7], [5, 3, 4]]
    for number, ((key, row), note) in enumerate(zip(examples("trash"), notes, strict=True), 1):
        assert fmt.decode_trash_key(key) == number
        assert fmt.trash_key(number) == key
        assert fmt.unpack_row(row) == note
        assert fmt.pack_row(note) == row

    meta = {key.decode(): fmt.unpack_row(row) for key, row in examples("meta")}
    assert meta == {
        "format_version": fmt.FORMAT_VERSION,
        "counters": [10, 4, 18],
        "databases": [[0, 2, 1], *([number, 0, 0] for number in range(1, 16))],
        "position": [6, 4096, 8192, 0],
        "synced": [6, 2048, 6144],
        "replication": ["7c2a8d3f95b1e046" * 2 + "7c2a8d3f", NO_ID, -1],
        "store": "51d04be6f7a3c819" * 2 + "51d04be6",
        "numbering": "9b440c5e1a7f2d38",
    }


# -- laws --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30) | st.integers(1000, 1100).map(bytes), max_size=12))
def test_words_read_back(words: list[bytes]) -> None:
    wire = fmt.encode_command(words)
    assert wire == b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    assert fmt.array_head(len(words)) + fmt.encode_words(words) == wire
    assert fmt.decode_words(wire) == words


def test_an_array_of_many_words_has_its_length_in_front() -> None:
    for count in (1023, 1024, 5000):
        assert fmt.decode_words(fmt.array_head(count) + fmt.encode_words([b"w"] * count)) == [b"w"] * count


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=4), st.data())
def test_a_shortened_or_lengthened_entry_does_not_decode(words: list[bytes], data: st.DataObject) -> None:
    wire = fmt.encode_command(words)
    cut = data.draw(st.integers(0, len(wire) - 1))
    for damaged in (wire[:cut], wire + b"x", b"+" + wire[1:]):
        with pytest.raises(fmt.DECODE_ERRORS):
            fmt.decode_words(damaged)


@given(IDS)
def test_an_id_as_a_bulk_string_is_its_text(entry_id: StreamID) -> None:
    text = b"%d-%d" % (entry_id >> 64, entry_id & (2**64 - 1))
    assert fmt.id_bulk(entry_id) == b"$%d\r\n%b\r\n" % (len(text), text)


def test_ids_of_one_millisecond_and_of_the_next_keep_apart() -> None:
    for entry_id in (make_id(5, 0), make_id(5, 9), make_id(5, 10), make_id(6, 999), make_id(5, 1000), make_id(5, 100)):
        text = b"%d-%d" % (entry_id >> 64, entry_id & (2**64 - 1))
        assert fmt.id_bulk(entry_id) == fmt.bulk(text)


@given(st.lists(st.tuples(NUMBERS, IDS), min_size=2, max_size=2))
def test_the_order_of_keys_is_the_order_of_numbers(pairs: list[tuple[int, StreamID]]) -> None:
    keys = [fmt.entry_key(*pair) for pair in pairs]
    assert (keys[0] < keys[1]) == (pairs[0] < pairs[1])
    assert [fmt.decode_entry_key(key) for key in keys] == pairs


@given(SMALL_NUMBERS, st.binary(max_size=500))
def test_a_key_is_itself_up_to_400_bytes_and_a_digest_above(keyspace_no: int, key: bytes) -> None:
    packed = fmt.key_key(keyspace_no, key)
    assert len(packed) <= 511
    assert fmt.decode_key_key(packed) == (keyspace_no, key if len(key) <= 400 else None)


@pytest.mark.parametrize("length", [0, 1, 399, 400, 401, 5000])
def test_keys_that_differ_in_their_last_byte_have_different_rows(length: int) -> None:
    assert fmt.key_key(0, b"k" * length + b"a") != fmt.key_key(0, b"k" * length + b"b")
    assert fmt.key_key(0, b"k" * length) != fmt.key_key(1, b"k" * length)


@pytest.mark.parametrize("packed", [b"", b"\0\0\0\0", b"\0\0\0\0\2abc", b"\0\0\0\0\1short", b"\0\0\0\0\0" + b"k" * 401])
def test_what_is_no_key_of_a_key_is_an_error(packed: bytes) -> None:
    with pytest.raises(fmt.DECODE_ERRORS):
        fmt.decode_key_key(packed)


STREAM_ROWS = st.builds(
    fmt.StreamRow,
    NUMBERS,
    st.none() | st.binary(min_size=401, max_size=410),
    *[NUMBERS] * 3,
    *[IDS] * 7,
    *[NUMBERS] * 5,
    st.none() | st.tuples(st.none() | SMALL_NUMBERS, st.none() | SMALL_NUMBERS, *[NUMBERS] * 3).map(list),
)


@given(STREAM_ROWS)
def test_a_stream_row_reads_back(row: fmt.StreamRow) -> None:
    assert fmt.decode_stream(fmt.encode_stream(row)) == row


@given(STREAM_ROWS, st.data())
def test_a_shortened_stream_row_does_not_decode(row: fmt.StreamRow, data: st.DataObject) -> None:
    packed = fmt.encode_stream(row)
    with pytest.raises(fmt.DECODE_ERRORS):
        fmt.decode_stream(packed[: data.draw(st.integers(0, len(packed) - 1))])


@given(SMALL_NUMBERS, SMALL_NUMBERS, NUMBERS, IDS)
def test_nodes_and_pending_entries_read_back(live: int, total: int, size: int, last_id: StreamID) -> None:
    assert fmt.decode_node(fmt.encode_node(live, total, size, last_id)) == (live, total, size, last_id)
    assert fmt.decode_run_head(fmt.encode_run(live, size, total, pack_id(last_id))) == (live, size, total)


@pytest.mark.parametrize("value", [0, -1, b"", b"\xff", [1, [b"x", None]], {1: b"a"}])
def test_msgpack_rows_read_back(value: Any) -> None:
    assert fmt.unpack_row(fmt.pack_row(value)) == value
