from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.dead_rows import (
    DeadConsumer,
    DeadGroup,
    DeadKeyspace,
    DeadRange,
    DeadStream,
    decode_note_key,
    note_key,
    pack_note,
    unpack_note,
)
from riverbed.store.format.entries import bare_row
from riverbed.store.format.groups import (
    ConsumerRow,
    GroupRow,
    consumer_key,
    decode_consumer_no,
    decode_digest_key,
    decode_group_no,
    decode_look_key,
    group_key,
    look_key,
    name_key_of,
    name_row,
)
from riverbed.store.format.idempotence import (
    PRODUCER_KEY_BYTES,
    RECORD_KEY_BYTES,
    IidRow,
    ProducerRow,
    RecordRow,
    RecordsRow,
    decode_record_no,
    decode_record_time_key,
    iid_key,
    producer_key,
    producer_of,
    record_key,
    record_time_key,
)
from riverbed.store.format.meta import (
    META_READERS,
    META_SYNCED,
    META_VERSION,
    Counters,
    DatabaseRow,
    Meta,
    PositionRow,
    pack_version,
    read_counters,
    read_databases,
    read_numbering,
    read_position,
    read_replids,
    read_synced,
    read_version,
)
from riverbed.store.format.packing import add_checksum, pack_row, rebind_row, unpack_row
from riverbed.store.format.pending import (
    ONE_TURN,
    TIME_KEY_BYTES,
    TURN_KEY_BYTES,
    UNOWNED,
    Run,
    decode_owner_no,
    group_prefix,
    last_in_key,
    length_of_run,
    owner_of_run,
    owner_prefix,
    release_prefix,
    time_key,
    time_prefix,
)
from riverbed.store.format.resp import (
    array_head,
    bulk,
    decode_entry,
    decode_words,
    encode_command,
    encode_entry,
    encode_words,
    id_bulk,
    word_pieces,
)
from riverbed.store.format.rows import DECODE_ERRORS, FORMAT_VERSION
from riverbed.store.format.streams import (
    NodeRow,
    StreamRow,
    decode_entry_key,
    decode_expiry_key,
    decode_key_key,
    decode_name_key,
    entry_key,
    expiry_key,
    key_key,
    name_key,
    pack_expiry,
    stream_prefix,
    unpack_expiry,
)
from riverbed.store.ids import StreamID, make_id, pack_id, unpack_id
from riverbed.store.model import DeliveryPolicy, IdempotenceSettings
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import NO_ID, ReplicationIds
from riverbed.store.tables import environment as tables
from riverbed.store.wire import seal
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
    stream = StreamRow.unpack(short, short_row)
    assert decode_key_key(short) == (0, b"s")
    assert key_key(0, b"s") == short
    assert stream == StreamRow(
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
    assert stream.pack(short) == short_row

    stream = StreamRow.unpack(long, long_row)
    assert decode_key_key(long) == (0, None)
    assert stream.long_key == b"k" * 401
    assert key_key(0, stream.long_key) == long
    assert (stream.stream_no, stream.length, stream.expire_ms) == (8, 0, DEADLINE_MS)
    assert stream.idempotence == IdempotenceSettings(60, None, 9, 1, 0)
    assert stream.pack(long) == long_row


def test_the_documents_names_entries_nodes_and_deadlines() -> None:
    ((key, row),) = examples("names")
    assert (decode_name_key(key), row) == ((0, 7), b"s")
    assert name_key(0, 7) == key

    ((key, row),) = examples("entries")
    assert decode_entry_key(key) == (7, make_id(1, 1))
    assert entry_key(7, make_id(1, 1)) == key
    assert decode_entry(bare_row(key, row)) == (b"1-1", [b"f", b"v"])
    assert seal(stream_prefix(7), encode_entry(make_id(1, 1), [b"f", b"v"])) == row

    ((key, row),) = examples("nodes")
    assert decode_entry_key(key) == (7, make_id(1, 1))
    assert NodeRow.unpack(key, row) == (98, 100, 1400, make_id(9, 4))
    assert NodeRow(98, 100, 1400, make_id(9, 4)).pack(key) == row

    ((key, row),) = examples("expiry")
    assert decode_expiry_key(key) == (DEADLINE_MS, 8)
    assert expiry_key(DEADLINE_MS, 8) == key
    assert unpack_expiry(key, row) == 0
    assert pack_expiry(key, 0) == row


def test_the_documents_idempotence_records() -> None:
    totals, producer, record = examples("idmp")
    entry_id = make_id(5, 0)
    assert (totals[0], RecordsRow.unpack(*totals)) == (stream_prefix(9), (60, 1, 1))
    assert (producer[0], ProducerRow.unpack(*producer)) == (producer_key(9, b"p"), (b"p", 1, 2))
    assert (record[0], RecordRow.unpack(*record)) == (record_key(producer[0], 1), (b"i", entry_id))
    assert RecordsRow(60, 1, 1).pack(totals[0]) == totals[1]
    assert ProducerRow(b"p", 1, 2).pack(producer[0]) == producer[1]
    assert RecordRow(b"i", entry_id).pack(record[0]) == record[1]
    assert (decode_record_no(record[0]), producer_of(record[0])) == (1, producer[0])
    assert (len(producer[0]), len(record[0])) == (PRODUCER_KEY_BYTES, RECORD_KEY_BYTES)

    ((key, row),) = examples("idmp_ids")
    assert key == iid_key(producer[0], b"i")
    assert IidRow.unpack(key, row) == (1, entry_id)
    assert IidRow(1, entry_id).pack(key) == row

    ((key, row),) = examples("idmp_times")
    assert (key, row) == (record_time_key(record[0], entry_id), b"")
    assert decode_record_time_key(key) == (record[0], entry_id)


def test_the_documents_group_and_consumer() -> None:
    (key, row), (consumer_packed, consumer_row), (policy_key, policy_row), *names = examples("groups")
    group = GroupRow.unpack(key, row)
    assert (key, decode_group_no(key)) == (group_key(7, 3), 3)
    assert group == GroupRow(b"g", make_id(2, 5), 2, 3, 1, 1, 2, 5, None, 0)
    assert group.pack(key) == row

    group = GroupRow.unpack(policy_key, policy_row)
    assert (policy_key, decode_group_no(policy_key)) == (group_key(7, 4), 4)
    assert group == GroupRow(b"h", StreamID(0), 0, 0, 0, 0, 1, 1, DeliveryPolicy(5, b"dead", 1000), DEADLINE_MS)
    assert group.pack(policy_key) == policy_row
    ((look_packed, look_row),) = examples("consumer_ttls")
    assert look_key(group.look_ms, 7, 4) == look_packed
    assert decode_look_key(look_packed) == (DEADLINE_MS, 7, 4)
    assert look_row == group.name

    assert [name_key for name_key, _ in names] == [name_key_of(consumer_packed, consumer_row), name_key_of(key, row)]
    assert all(name_row(name_key) == row_of_name for name_key, row_of_name in names)
    assert [decode_digest_key(name_key)[3] for name_key, _ in names] == [1, 3]

    consumer = ConsumerRow.unpack(consumer_packed, consumer_row)
    assert consumer_packed == consumer_key(7, 3, 1)
    assert (decode_group_no(consumer_packed), decode_consumer_no(consumer_packed)) == (3, 1)
    assert consumer == ConsumerRow(b"Alice", DEADLINE_MS, -1, 2)
    assert consumer.pack(consumer_packed) == consumer_row


def test_the_documents_pending_entries() -> None:
    (key, row), (released_key, released_row), (turned_key, turned_row) = examples("pel")
    last_id = pack_id(make_id(2, 0))
    assert key == group_prefix(3) + last_id
    run = Run.unpack(key, row)
    assert run.ids() == [pack_id(make_id(1, 1)), last_id]
    assert (run.consumer_no, run.time_ms, run.turn, run.delivery_count) == (1, DEADLINE_MS, 0, 1)
    assert (owner_of_run(row), length_of_run(row), last_in_key(key)) == (1, len(run), run.last)
    assert run.pack(group_prefix(3)) == row
    released = Run.unpack(released_key, released_row)
    assert (released.consumer_no, released.time_ms, released.delivery_count) == (UNOWNED, 4, 2)
    assert released.ids() == [released_key[8:]] == [pack_id(make_id(2, 5))]
    turned = Run.unpack(turned_key, turned_row)
    assert (turned.consumer_no, turned.time_ms, turned.turn, turned.delivery_count) == (1, DEADLINE_MS, 3, 1)
    assert turned.moment == 3 * ONE_TURN + DEADLINE_MS
    assert turned.pack(group_prefix(3)) == turned_row

    ((key, row),) = examples("pel_by_consumer")
    assert (key, row) == (owner_prefix(3, 1) + last_id, b"")
    assert decode_owner_no(key) == 1

    (key, row), (released_key, released_row), (turned_key, turned_row) = examples("pel_by_time")
    assert (key, row) == (time_prefix(3, DEADLINE_MS) + last_id, b"") == (time_key(3, run), b"")
    assert released_key == release_prefix(3) + (4).to_bytes(16, "big") == time_key(3, released)
    assert unpack_id(released_row) == make_id(2, 5)
    assert (turned_key, turned_row) == (time_key(3, turned), b"")
    assert (len(key), len(turned_key)) == (TIME_KEY_BYTES, TURN_KEY_BYTES)
    assert time_prefix(3, DEADLINE_MS) + b"\xff" * 16 < turned_key < time_prefix(3, DEADLINE_MS + 1)


def test_the_documents_notes_of_dead_rows() -> None:
    notes = [DeadStream(6), DeadRange(7, make_id(1, 1)), DeadKeyspace(17), DeadGroup(2, 7), DeadConsumer(3, 4)]
    for number, ((key, row), note) in enumerate(zip(examples("trash"), notes, strict=True), 1):
        assert decode_note_key(key) == number
        assert note_key(number) == key
        found = unpack_note(row)
        assert (found, type(found)) == (note, type(note))
        assert pack_note(note) == row


@pytest.mark.parametrize(
    "values", [[], [0, 1], [6, 1], [1], [1, 2, 3], [2, 1], [2, 1, 5], [2, 1, b"short"], ["a", 1], 1]
)
def test_what_is_no_note_of_dead_rows_is_an_error(values: Any) -> None:
    with pytest.raises(DECODE_ERRORS):
        unpack_note(pack_row(values))


def test_the_documents_rows_of_meta() -> None:
    rows = dict(examples("meta"))
    replids = ReplicationIds("7c2a8d3f95b1e046" * 2 + "7c2a8d3f", NO_ID, -1, "51d04be6f7a3c819" * 2 + "51d04be6")
    databases = [DatabaseRow(0, 2, 1), *(DatabaseRow(number, 0, 0) for number in range(1, 16))]
    assert read_version(rows.get) == FORMAT_VERSION
    assert read_counters(rows.get) == (10, 4, 18)
    assert read_databases(rows.get) == databases
    assert read_position(rows.get) == (6, 4096, 8192, 0)
    assert read_synced(rows.get) == LogPosition(6, 2048, 6144)
    assert read_replids(rows.get) == replids
    assert read_numbering(rows.get) == "9b440c5e1a7f2d38"
    position = PositionRow(6, 4096, 8192, 0)
    meta = Meta(Counters(10, 4, 18), databases, position, LogPosition(6, 2048, 6144), replids, "9b440c5e1a7f2d38")
    assert rows == {META_VERSION: pack_version(), **dict(meta.rows())}
    assert dict(meta._replace(synced=None).rows())[META_SYNCED] is None
    assert set(META_READERS) == set(rows)


def test_meta_without_rows_is_that_of_a_store_without_a_checkpoint() -> None:
    empty: dict[bytes, bytes] = {}
    assert [read(empty.get) or None for read in META_READERS.values()] == [None] * len(META_READERS)


# -- laws --------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30) | st.integers(1000, 1100).map(bytes), max_size=12))
def test_words_read_back(words: list[bytes]) -> None:
    wire = encode_command(words)
    assert wire == b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    assert array_head(len(words)) + encode_words(words) == wire
    assert decode_words(wire) == words


def test_an_array_of_many_words_has_its_length_in_front() -> None:
    for count in (1023, 1024, 5000):
        assert decode_words(array_head(count) + encode_words([b"w"] * count)) == [b"w"] * count


@pytest.mark.parametrize(
    "words",
    [
        [],
        [b"f", b"v"],
        [b"%d" % number for number in range(3001)],
        [b"f" * 70_000, b"v", *[b"w"] * 2000, b"x" * 1023, b"y" * 1024],
        [b"w" * 65] * 2500,
    ],
)
def test_the_pieces_of_a_long_entry_are_its_bytes_and_no_long_word_is_copied(words: list[bytes]) -> None:
    pieces = word_pieces(words)
    assert b"".join(pieces) == encode_words(words)
    kept = {id(piece) for piece in pieces}
    assert all(id(word) in kept for word in words if len(word) >= 64 << 10)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=4), st.data())
def test_a_shortened_or_lengthened_entry_does_not_decode(words: list[bytes], data: st.DataObject) -> None:
    wire = encode_command(words)
    cut = data.draw(st.integers(0, len(wire) - 1))
    for damaged in (wire[:cut], wire + b"x", b"+" + wire[1:]):
        with pytest.raises(DECODE_ERRORS):
            decode_words(damaged)


@given(IDS)
def test_an_id_as_a_bulk_string_is_its_text(entry_id: StreamID) -> None:
    text = b"%d-%d" % (entry_id >> 64, entry_id & (2**64 - 1))
    assert id_bulk(entry_id) == b"$%d\r\n%b\r\n" % (len(text), text)


def test_ids_of_one_millisecond_and_of_the_next_keep_apart() -> None:
    for entry_id in (make_id(5, 0), make_id(5, 9), make_id(5, 10), make_id(6, 999), make_id(5, 1000), make_id(5, 100)):
        text = b"%d-%d" % (entry_id >> 64, entry_id & (2**64 - 1))
        assert id_bulk(entry_id) == bulk(text)


@given(st.lists(st.tuples(NUMBERS, IDS), min_size=2, max_size=2))
def test_the_order_of_keys_is_the_order_of_numbers(pairs: list[tuple[int, StreamID]]) -> None:
    keys = [entry_key(*pair) for pair in pairs]
    assert (keys[0] < keys[1]) == (pairs[0] < pairs[1])
    assert [decode_entry_key(key) for key in keys] == pairs


@given(SMALL_NUMBERS, st.binary(max_size=500))
def test_a_key_is_itself_up_to_400_bytes_and_a_digest_above(keyspace_no: int, key: bytes) -> None:
    packed = key_key(keyspace_no, key)
    assert len(packed) <= 511
    assert decode_key_key(packed) == (keyspace_no, key if len(key) <= 400 else None)


@pytest.mark.parametrize("length", [0, 1, 399, 400, 401, 5000])
def test_keys_that_differ_in_their_last_byte_have_different_rows(length: int) -> None:
    assert key_key(0, b"k" * length + b"a") != key_key(0, b"k" * length + b"b")
    assert key_key(0, b"k" * length) != key_key(1, b"k" * length)


@pytest.mark.parametrize("packed", [b"", b"\0\0\0\0", b"\0\0\0\0\2abc", b"\0\0\0\0\1short", b"\0\0\0\0\0" + b"k" * 401])
def test_what_is_no_key_of_a_key_is_an_error(packed: bytes) -> None:
    with pytest.raises(DECODE_ERRORS):
        decode_key_key(packed)


STREAM_ROWS = st.builds(
    StreamRow,
    NUMBERS,
    st.none() | st.binary(min_size=401, max_size=410),
    *[NUMBERS] * 3,
    *[IDS] * 7,
    *[NUMBERS] * 5,
    st.none() | st.builds(IdempotenceSettings, st.none() | SMALL_NUMBERS, st.none() | SMALL_NUMBERS, *[NUMBERS] * 3),
)


@given(STREAM_ROWS)
def test_a_stream_row_reads_back(row: StreamRow) -> None:
    packed = row.pack(b"key")
    assert StreamRow.unpack(b"key", packed) == row
    assert pack_row(unpack_row(packed, b"key"), b"key") == packed  # the same by msgpack as without
    assert StreamRow.is_bound(b"key", packed) and not StreamRow.is_bound(b"kex", packed)
    with pytest.raises(DamagedRowError):
        StreamRow.unpack(b"kex", packed)


@given(STREAM_ROWS)
def test_the_row_of_a_stream_without_its_key_in_the_checksum_reads_back(row: StreamRow) -> None:
    values = unpack_row(row.pack(b""))
    assert StreamRow.unpack(b"key", pack_row(values)) == row
    assert StreamRow.is_bound(b"key", pack_row(values))


@given(STREAM_ROWS, st.data())
def test_a_shortened_stream_row_does_not_decode(row: StreamRow, data: st.DataObject) -> None:
    packed = row.pack(b"key")
    with pytest.raises(DECODE_ERRORS):
        StreamRow.unpack(b"key", packed[: data.draw(st.integers(0, len(packed) - 1))])


GROUP = GroupRow(b"g", make_id(1, 2), 5, 3, 1, 1, 2, 5, DeliveryPolicy(5, b"dead", 1000), 7)
KEY = b"key"
ROWS = [
    GROUP,
    ConsumerRow(b"c", 1, -1, 2),
    RecordsRow(60, 1, 1),
    ProducerRow(b"p", 1, 2),
    RecordRow(b"i", make_id(1, 2)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row).__name__)
def test_a_row_with_a_value_more_or_less_does_not_decode(row: Any) -> None:
    values = unpack_row(row.pack(b""))
    assert type(row).unpack(KEY, pack_row(values, KEY)) == row
    for damaged in (values[:-1], [*values, 1], []):
        with pytest.raises(DECODE_ERRORS):
            type(row).unpack(KEY, pack_row(damaged, KEY))


@pytest.mark.parametrize(
    "row", [*ROWS, NodeRow(2, 3, 40, make_id(1, 2)), IidRow(1, make_id(5, 0))], ids=lambda row: type(row).__name__
)
def test_a_row_belongs_to_its_key_unless_an_older_version_has_written_it(row: Any) -> None:
    packed = row.pack(KEY)
    assert type(row).unpack(KEY, packed) == row
    with pytest.raises(DamagedRowError):
        type(row).unpack(b"kex", packed)
    assert type(row).unpack(KEY, row.pack(b"")) == row
    assert rebind_row(ROWS[0].pack(KEY), KEY, b"other") == ROWS[0].pack(b"other")


def test_a_deadline_belongs_to_its_key_unless_an_older_version_has_written_it() -> None:
    assert unpack_expiry(KEY, pack_expiry(KEY, 3)) == unpack_expiry(KEY, pack_expiry(b"", 3)) == 3
    with pytest.raises(DamagedRowError):
        unpack_expiry(b"kex", pack_expiry(KEY, 3))


@pytest.mark.parametrize("damaged", [b"\0" * 15, b"\0" * 17, b"", "text", 5, None, [b"\0" * 16]])
def test_a_group_whose_last_id_is_none_does_not_decode(damaged: Any) -> None:
    values = unpack_row(GROUP.pack(b""))
    values[1] = damaged
    with pytest.raises(DECODE_ERRORS):
        GroupRow.unpack(KEY, pack_row(values))


@given(SMALL_NUMBERS, SMALL_NUMBERS, NUMBERS, IDS)
def test_nodes_and_pending_entries_read_back(live: int, total: int, size: int, last_id: StreamID) -> None:
    assert NodeRow.unpack(KEY, NodeRow(live, total, size, last_id).pack(KEY)) == (live, total, size, last_id)
    key = group_prefix(3) + pack_id(last_id)
    run = Run.unpack(key, Run(live, size, total, pack_id(last_id)).pack(group_prefix(3)))
    assert (run.consumer_no, run.moment, run.delivery_count, run.ids()) == (live, size, total, [pack_id(last_id)])
    assert (run.time_ms + run.turn * ONE_TURN, run.turn) == (size, size >> 48 if live else 0)


def test_a_run_belongs_to_its_group_unless_an_older_version_has_written_it() -> None:
    key, other = (group_prefix(number) + pack_id(make_id(1, 1)) for number in (3, 4))
    row = Run(1, DEADLINE_MS, 1, key[8:]).pack(group_prefix(3))
    assert Run.under(key, row).ids() == [key[8:]]
    with pytest.raises(DamagedRowError):
        Run.under(other, row)
    of_version_2 = row[:-4]
    for older in (of_version_2, add_checksum(of_version_2)):
        assert Run.under(key, older).ids() == Run.under(other, older).ids() == [key[8:]]


@pytest.mark.parametrize("value", [0, -1, b"", b"\xff", [1, [b"x", None]], {1: b"a"}])
def test_msgpack_rows_read_back(value: Any) -> None:
    assert unpack_row(pack_row(value)) == value
