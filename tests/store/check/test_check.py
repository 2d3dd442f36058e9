from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from pathlib import Path
from random import Random
from unittest.mock import patch

import lmdb
import pytest

from riverbed.store.check import Violation, check
from riverbed.store.errors import VersionError
from riverbed.store.format.groups import consumer_key, group_key, look_key
from riverbed.store.format.meta import META_NUMBERING, META_SYNCED
from riverbed.store.format.packing import pack_row
from riverbed.store.format.pending import group_prefix, owner_prefix, time_prefix
from riverbed.store.format.resp import encode_entry
from riverbed.store.format.streams import decode_stream_prefix, entry_key, expiry_key, name_key, stream_prefix
from riverbed.store.ids import MAX_ID, make_id, pack_id
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, STATE_DIRECTORY
from riverbed.store.model import IdempotenceSettings
from riverbed.store.running.log_keeper import LogKeeper
from riverbed.store.tables.environment import TABLES, Tables
from tests.support.servers import ROOT
from tests.support.store.planting import (
    Damage,
    damage,
    do,
    drop_database,
    make_sound,
    meta_rows,
    node,
    set_meta,
    violations,
)
from tests.support.store.stores import Store, sid


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A directory with rows in every table, closed."""
    make_sound(tmp_path)
    return tmp_path


def test_a_sound_store_has_rows_in_every_table_and_breaks_no_promise(sound: Path) -> None:
    assert violations(sound) == []
    tables = Tables(sound, 1 << 28, readonly=True)
    with tables.env.begin() as txn:
        assert [table for table in TABLES if not txn.stat(tables.handles[table])["entries"]] == []
    tables.close()


def test_a_violation_says_where_and_what() -> None:
    assert str(Violation("nodes", "stream 1, 5-0", "2 live")) == "nodes: stream 1, 5-0: 2 live"
    assert str(Violation("meta", "", "is missing")) == "meta: is missing"


# the damage, and words of what is found
DAMAGES: dict[str, tuple[Damage, str]] = {
    # keys and names
    "a key's row is lost": (do.delete("keys"), "has no row in `keys`"),
    "a name is lost": (do.delete("names"), "does not name"),
    "a name is another": (do.change("names", b"other"), "does not name"),
    "a stream in two databases": (do.put("names", name_key(9, 1), b"s"), "has another name as well"),
    "a key's row is garbage": (do.change("keys", b"\xc1"), "does not decode"),
    "a key's row is cut": (lambda rows: rows.change("keys", rows.all("keys")[0][1][:40]), "does not decode"),
    "a counter is text": (do.repack("keys", 2, b"ten"), "does not decode"),
    "a key of no kind": (lambda rows: rows.put("keys", b"\0\0\0\0\7s", rows.all("keys")[0][1]), "does not decode"),
    "a key of no keyspace": (lambda rows: rows.copy("keys", b"\0\0\0\x63\0s"), "no database's"),
    "a long key under a wrong digest": (do.stream(2, long_key=b"u" * 450), "not the digest"),
    "a short key in its row as well": (do.stream(long_key=b"s"), "in the row as well"),
    "a number not given out": (do.stream(stream_no=999), "next to be given out"),
    # streams and entries
    "the length is wrong": (do.stream(length=11), "but there are"),
    "the first ID is wrong": (do.stream(first_id=sid("2-0")), "but there are"),
    "the newest entry is wrong": (do.stream(last_live_id=sid("8-0")), "but there are"),
    "the last ID is below": (do.stream(last_id=sid("8-0")), "is below its newest entry"),
    "too few were added": (do.stream(entries_added=3), "were ever added"),
    "an entry is lost": (do.delete("entries", 3), "but there are"),
    "an entry too many": (
        do.put("entries", entry_key(1, sid("5-5")), encode_entry(sid("5-5"), [b"a", b""])),
        "but there are",
    ),
    "an entry is cut": (lambda rows: rows.change("entries", rows.all("entries")[0][1][:-1], 0), "does not decode"),
    "a field without a value": (do.seal(encode_entry(sid("1-0"), [b"a"])), "not fields with values"),
    "an entry of nothing": (do.seal(encode_entry(sid("1-0"), [])), "not fields with values"),
    "a length with a zero": (do.seal(b"$3\r\n1-0\r\n*2\r\n$01\r\nf\r\n$1\r\nv\r\n"), "unusual"),
    "another entry's row": (do.change("entries", encode_entry(sid("1-1"), [b"f", b"v"])), "is the row of 1-1"),
    "entries of nobody": (do.put("entries", entry_key(50, sid("1-0")), b"*0\r\n"), "belongs to no key"),
    "a short key of an entry": (do.put("entries", b"\0\0\0", b""), "too short"),
    "the floor is too high": (do.stream(floor_id=sid("3-0")), "no note has it purged"),
    "living entries are to be purged": (
        do.change("trash", pack_row([2, 1, pack_id(sid("5-0"))])),
        "below 5-0 are to be purged",
    ),
    # nodes
    "a node is lost": (do.delete("nodes"), "is in no node"),
    "a node counts wrongly": (do.change("nodes", node(2, 4, 56, "4-0")), "2 live entries counted"),
    "a node of too few": (do.change("nodes", node(3, 2, 56, "4-0")), "3 live entries of 2"),
    "a node of other bytes": (do.change("nodes", node(3, 4, 9, "4-0")), "9 bytes counted"),
    "a node that ends late": (do.change("nodes", node(3, 4, 56, "5-0")), "the next one has"),
    "a node that ends early": (do.change("nodes", node(3, 4, 56, "3-0")), "is in no node"),
    "nodes counted wrongly": (do.stream(node_count=7), "7 closed nodes counted"),
    "the last node counts wrongly": (do.stream(tail_dead=9), "entries of the last node are gone"),
    # deadlines
    "a deadline is lost": (do.empty("expiry"), "is not in the list"),
    "a deadline of nobody": (do.put("expiry", expiry_key(5, 3), bytes(4)), "has the deadline 5"),
    "a deadline in no keyspace": (do.put("expiry", expiry_key(5, 3), b"\0\0\1\0"), "was never given out"),
    # meta
    "keys are miscounted": (set_meta(b"databases", 0, [0, 9, 1]), "9 keys counted"),
    "deadlines are miscounted": (set_meta(b"databases", 0, [0, 2, 2]), "2 keys with a deadline counted"),
    "a keyspace twice": (set_meta(b"databases", 1, [0, 0, 0]), "16 different keyspaces"),
    "stream numbers start again": (set_meta(b"counters", 0, 2), "next to be given out"),
    "group numbers start again": (set_meta(b"counters", 1, 1), "next to be given out"),
    "keyspace numbers start again": (set_meta(b"counters", 2, 3), "next keyspace_no 3"),
    "a position that is none": (set_meta(b"position", 1, -4), "does not decode"),
    "no position": (lambda rows: rows.delete("meta", meta_rows(rows)[b"position"]), "position: is missing"),
    "no meta at all": (do.empty("meta"), "no checkpoint was ever made"),
    "no version": (lambda rows: rows.delete("meta", meta_rows(rows)[b"format_version"]), "format_version: is missing"),
    "no replids": (lambda rows: rows.delete("meta", meta_rows(rows)[b"replication"]), "replication: is missing"),
    "no store": (lambda rows: rows.delete("meta", meta_rows(rows)[b"store"]), "store: is missing"),
    "a store that is none": (do.put("meta", b"store", pack_row("abc")), "store: does not decode"),
    "a line of offsets that is none": (set_meta(b"replication", 0, "abc"), "replication: does not decode"),
    "a database that is none": (set_meta(b"position", 3, 16), "does not decode"),
    "a numbering that is none": (do.put("meta", b"numbering", b"\xc1"), "numbering: "),
    "a row of another name": (do.put("meta", b"nvmbering", pack_row("abc")), "nvmbering: is no row of this table"),
    "another database is selected": (set_meta(b"position", 3, 7), "database 7 is selected there, and the log says 0"),
    "a position within a batch": (set_meta(b"position", 1, 100), "no batch ends at byte 100"),
    "a position in a file that is not there": (set_meta(b"position", 0, -9), "is in file -9"),
    "a position beyond the log": (
        set_meta(b"position", 1, 1 << 40),
        "the log ends before the place that a checkpoint covers",
    ),
    "durable up to a place that is none": (set_meta(b"synced", 1, b"x"), "does not decode"),
    "fifteen databases": (drop_database, "16 different keyspaces expected"),
    # idempotence
    "a record is lost": (do.delete("idmp", 2), "records counted"),
    "a producer is lost": (do.delete("idmp", 1), "without its producer"),
    "records are miscounted": (do.repack("idmp", 2, 5), "counted"),
    "records live for another time": (do.repack("idmp", 0, 7), "says that records live for 7 s"),
    "records of a stream that has none": (
        lambda rows: rows.stream(idempotence=IdempotenceSettings(records_added=2)),
        "are no stream's",
    ),
    "a producer's records are miscounted": (do.repack("idmp", 1, 5, 1), "5 records counted, there are 2"),
    "a producer of another name": (do.repack("idmp", 0, b"x", 1), "not the digest of the producer"),
    "record numbers start again": (do.repack("idmp", 2, 1, 1), "to be given out"),
    "a record is not found by id": (do.delete("idmp_ids"), "not found by its id"),
    "a record is not found by age": (do.delete("idmp_times"), "not found by its age"),
    "a record's age holds something": (do.change("idmp_times", b"x"), "where none belongs"),
    "records under a stream's number": (
        do.stream(idempotence=IdempotenceSettings(100, 100, 1, 2, 0)),
        "have a stream's number",
    ),
    "an id too many": (
        lambda rows: rows.put("idmp_ids", rows.all("idmp_ids")[0][0][:24] + bytes(16), bytes(24)),
        "3 rows for 2 records",
    ),
    "records of nobody": (do.put("idmp", stream_prefix(3), pack_row([1, 0, 0])), "are no stream's"),
    # trash
    "the trash is lost": (do.empty("trash"), "not to be purged"),
    "a note of no kind": (do.repack("trash", 0, 77), "does not decode"),
    "a note of another form": (do.change("trash", pack_row([2, 1])), "does not decode"),
    "a note on a living stream": (do.change("trash", pack_row([1, 1])), "is in use, and to be purged"),
    "a note on a living keyspace": (do.change("trash", pack_row([3, 0])), "and a database uses it"),
    "a note on a living group": (do.change("trash", pack_row([4, 1, 1])), "is in use, and to be purged"),
    "a note on a living consumer": (do.change("trash", pack_row([5, 1, 1])), "is in use, and to be purged"),
    "a note on the future": (do.change("trash", pack_row([1, 500])), "not given out yet"),
    # groups
    "a group is lost": (do.delete("groups"), "groups counted, there are 0"),
    "a group's row is garbage": (do.change("groups", b"\x90"), "does not decode"),
    "pending entries are miscounted": (do.repack("groups", 3, 99), "99 pending entries counted"),
    "released entries are miscounted": (do.repack("groups", 4, 0), "of no consumer counted"),
    "consumers are miscounted": (do.repack("groups", 5, 1), "1 consumers counted"),
    "consumer numbers start again": (do.repack("groups", 6, 1), "next to be given out"),
    "a consumer's entries are miscounted": (do.repack("groups", 3, 50, 1), "50 entries of consumer 1 counted"),
    "a consumer is lost": (do.delete("groups", 1), "consumer 1's, which does not exist"),
    "two consumers of one name": (do.repack("groups", 0, b"Alice", 2), "is there twice"),
    "a consumer of no group": (do.put("groups", consumer_key(1, 9, 1), b""), "a consumer of group 9"),
    "a group of two streams": (
        lambda rows: rows.put("groups", group_key(3, 1), rows.all("groups")[0][1]),
        "group 1 is another stream's as well",
    ),
    "a group of no stream": (do.put("groups", group_key(77, 2), b""), "belongs to no key"),
    "a pending entry is lost": (do.delete("pel"), "counted"),
    "a pending row is cut": (do.change("pel", b"\0\0\0\1"), "does not decode"),
    "an owner's list is short": (do.delete("pel_by_consumer"), "is missing in the list of"),
    "an owner's list holds something": (do.change("pel_by_consumer", b"x"), "where none belongs"),
    "an owner's list is long": (
        do.put("pel_by_consumer", owner_prefix(1, 1) + pack_id(MAX_ID), b""),
        "the list of consumer 1",
    ),
    "the order by time is short": (do.empty("pel_by_time"), "is missing at"),
    "the order by time is long": (
        do.put("pel_by_time", time_prefix(1, 4) + pack_id(make_id(7, 7)), b""),
        "pel_by_time",
    ),
    "nobody looks for idle consumers": (do.empty("consumer_ttls"), "is not listed at"),
    "somebody looks for idle consumers twice": (
        do.put("consumer_ttls", look_key(5, 1, 1), b"g"),
        "is listed at 5 ms, which its row does not show",
    ),
    "somebody looks in a group that is not there yet": (
        do.put("consumer_ttls", look_key(5, 1, 77), b"g"),
        "a number not given out yet",
    ),
    "a policy without a dead-letter stream": (do.repack("groups", 8, [5, None, 0, 0]), "is no delivery policy"),
    "pending entries of no group": (do.put("pel", group_prefix(60) + bytes(16), bytes(20)), "is of no stream"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_broken_promise_is_found(sound: Path, name: str) -> None:
    how, words = DAMAGES[name]
    damage(sound, how)
    found = violations(sound)
    assert any(words in violation for violation in found), found


def test_any_row_that_is_lost_is_noticed(sound: Path) -> None:
    """Only what waits for the purge may go missing, what saves a start work, and whose the stream numbers are."""
    path = sound / STATE_DIRECTORY / DATA_NAME
    tables = Tables(sound, 1 << 28)
    try:
        for table in TABLES:
            with tables.env.begin(buffers=False) as txn, txn.cursor(tables.handles[table]) as cursor:
                keys = list(itertools.islice(cursor.iternext(values=False), 40))
            for key in keys:
                whole = path.read_bytes()
                with tables.env.begin(write=True) as txn:
                    txn.delete(key, db=tables.handles[table])
                tables.close()
                found = violations(sound)
                path.write_bytes(whole)
                tables = Tables(sound, 1 << 28)
                is_dead = table in ("entries", "nodes") and decode_stream_prefix(key) != 1
                assert found or is_dead or key in (META_SYNCED, META_NUMBERING), (table, key)
    finally:
        tables.close()


def test_a_check_can_end_early(sound: Path) -> None:
    damage(sound, lambda rows: [rows.empty(table) for table in ("keys", "nodes", "pel")])
    found = check(sound)
    assert isinstance(next(found), Violation)
    found.close()
    assert len(violations(sound)) > 5


# -- the log -----------------------------------------------------------------------------------------------------------


def log_files(directory: Path) -> list[Path]:
    return sorted((directory / LOG_DIRECTORY).glob("*.incr.aof"))


def test_a_flipped_byte_of_the_log_is_found(sound: Path) -> None:
    (log,) = log_files(sound)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    (found,) = violations(sound)
    assert found.startswith(f"log: {log} at byte ")


def test_a_log_that_ends_before_what_the_tables_cover_is_found(sound: Path) -> None:
    (log,) = log_files(sound)
    data = log.read_bytes()
    log.write_bytes(data[: data.rindex(b"*2\r\n$6\r\nSELECT")])
    assert len(violations(sound)) == 1


def test_a_lost_log_is_found(sound: Path) -> None:
    for path in (sound / LOG_DIRECTORY).iterdir():
        path.unlink()
    (found,) = violations(sound)
    assert "there is none" in found


def test_a_torn_tail_behind_the_tables_is_what_a_crash_leaves(sound: Path) -> None:
    with log_files(sound)[0].open("ab") as log:
        log.write(b"*3\r\n$4\r\nXA")
    assert violations(sound) == []


def test_a_file_that_relies_on_the_database_of_the_one_before_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path, segment_bytes=100)
    store.add(b"s", "1-0", words=(b"f", b"x" * 200), db=2)
    with patch.object(LogKeeper, "write_preface"):
        store.commit()
    store.add(b"s", "2-0", db=2)
    store.commit()
    store.engine.close()
    (found,) = violations(tmp_path)
    assert "no SELECT before a command needs it" in found


# -- directories in other states ---------------------------------------------------------------------------------------


def test_an_empty_directory_is_sound(tmp_path: Path) -> None:
    assert violations(tmp_path) == []


def test_a_store_that_was_never_checkpointed_is_sound(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.fill(b"s", 30)
    store.commit()
    store.kill()
    assert violations(tmp_path) == []


def test_a_log_without_tables_is_sound(sound: Path) -> None:
    for path in (sound / "state").iterdir():
        path.unlink()
    (sound / "state").rmdir()
    assert violations(sound) == []


def test_tables_that_are_no_lmdb_file_are_found(sound: Path) -> None:
    data = sound / "state" / "data.mdb"
    data.write_bytes(b"x" * data.stat().st_size)
    (found,) = violations(sound)
    assert found.startswith(f"lmdb: {data}: not an LMDB data file")


def test_a_broken_page_is_found(sound: Path) -> None:
    data = sound / "state" / "data.mdb"
    pages = bytearray(data.read_bytes())
    for start in range(2 * 4096, len(pages), 4096):
        pages[start : start + 16] = bytes(16)
    data.write_bytes(pages)
    assert any(violation.startswith("lmdb: ") for violation in violations(sound))


@pytest.mark.parametrize("table", ["entries", "consumer_ttls", "trash", "meta"])
def test_a_table_that_is_gone_altogether_is_found(sound: Path, table: str) -> None:
    env = lmdb.open(str(sound / "state"), map_size=1 << 28, max_dbs=20)
    with env.begin(write=True) as txn:
        txn.drop(env.open_db(table.encode(), txn=txn))
    env.close()
    assert f"{table}: {sound / 'state' / 'data.mdb'}: the table is missing" in violations(sound)


def test_a_page_under_another_number_is_found_without_lmdb(sound: Path) -> None:
    data = sound / "state" / "data.mdb"
    pages = bytearray(data.read_bytes())
    found = 0
    for start in range(2 * 4096, len(pages), 4096):
        pages[start] ^= 1
        data.write_bytes(pages)
        pages[start] ^= 1
        broken = list(check(sound))
        assert all((violation.table, violation.file) == ("lmdb", str(data)) for violation in broken)
        found += any(violation.offset == start for violation in broken)
    assert found > 15  # the others are free


def test_no_damage_to_the_tables_makes_the_check_fall_over(sound: Path) -> None:
    """Most bytes are of rows, which have no checksums: a value is as good as another.  --deep knows."""
    data = sound / "state" / "data.mdb"
    pages = data.read_bytes()
    random = Random(1)
    for _ in range(60):
        flipped = bytearray(pages)
        for _ in range(random.choice((1, 1, 50))):
            flipped[random.randrange(len(pages))] ^= 1 << random.randrange(8)
        data.write_bytes(flipped)
        with contextlib.suppress(VersionError):
            violations(sound)


def test_an_lmdb_file_that_was_cut_is_found(sound: Path) -> None:
    data = sound / "state" / "data.mdb"
    pages = data.read_bytes()
    for size in (1, 4096, 8192, len(pages) // 2):
        data.write_bytes(pages[:size])
        assert any(violation.startswith("lmdb: ") for violation in violations(sound)), size


CHECK_FROM_OUTSIDE = """
import sys
from pathlib import Path
from riverbed.store.check import check
print([str(violation) for violation in check(Path(sys.argv[1]))])
"""


def test_a_store_can_be_checked_while_it_is_being_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(5):
        store.add(b"s", *(f"{number}-{seq}" for seq in range(1, 200)))
        store.checkpoint()
        store.add(b"t", f"{number}-1")
        store.commit()
        command = [sys.executable, "-c", CHECK_FROM_OUTSIDE, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"
    store.engine.close()


MEMORY = """
import resource
from riverbed.store.format.resp import id_bulk
from riverbed.store.ids import StreamID
from riverbed.store.wire import log_entries, measure_entries

limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (48 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
head = id_bulk(StreamID(5))
key = bytes(23) + b"\\5"
for kind in b"*>~%|":
    for more in (b"%c300000000\\r\\n" % kind, b"*2\\r\\n%c300000000\\r\\n" % kind, b"*999999999\\r\\n$-7\\r\\n"):
        row = key, head + more
        assert measure_entries(iter([row]), bytes(8), 9) == ([key], [-1], [row])
        try:
            log_entries(iter([head + more]), bytes(24), b"", 1)
        except ValueError:
            continue
        raise AssertionError(row)
text = head + b"*2\\r\\n$1\\r\\nf\\r\\n$12\\r\\n*300000000\\r\\n\\r\\n"
assert measure_entries(iter([(key, text)]), bytes(8), 9) == ([key], [len(text) - len(head) - 4], [])
print("held")
"""


def test_no_number_in_a_damaged_row_takes_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "held\n", done.stderr[-2000:]
