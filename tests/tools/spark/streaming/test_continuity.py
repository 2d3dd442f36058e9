from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from riverbed.store.errors import CorruptionError, VersionError
from riverbed.store.snapshot.reader import Snapshot
from riverbed.store.snapshot.restore import restore_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.spark.errors import DataLossError, SourceError
from riverbed.tools.spark.reading import locations
from riverbed.tools.spark.reading.locations import open_place
from riverbed.tools.spark.reading.options import Table, read_options
from riverbed.tools.spark.reading.schemas import default_schema
from riverbed.tools.spark.streaming import streaming
from riverbed.tools.spark.streaming.streaming import EntryStreamReader
from tests.support.in_process import HandClock, Product
from tests.support.servers import RiverbedServer
from tests.support.store.planting import damage, do
from tests.tools.spark.stores import freeze

StartAnother = Callable[..., RiverbedServer]


class Query:
    """A streaming query without Spark: offsets go through JSON, as in its checkpoint."""

    def __init__(self, path: Path, **options: object) -> None:
        asked = {"path": str(path), "cacheDirectory": str(path.parent / "cache")}
        asked |= {name: str(value) for name, value in options.items()}
        self._asked = asked
        self.reader = EntryStreamReader(read_options(asked), default_schema(Table.ENTRIES))
        self.at: dict[str, Any] = self.reader.initialOffset()

    def read_from(self, path: Path) -> None:
        """Go on with what is at another place."""
        self.reader = EntryStreamReader(read_options(self._asked | {"path": str(path)}), default_schema(Table.ENTRIES))

    def batch(self, most: int | None = None) -> list[int]:
        """What the next batch has, by field n; all that there is unless `most` is given."""
        limit = self.reader.getDefaultReadLimit() if most is None else ReadMaxRows(most)
        begin, self.at = self.at, self.reader.latestOffset(self.at, limit)
        return [] if begin == self.at else self.rows(begin, self.at)

    def tasks(self) -> Sequence[InputPartition]:
        """Those of the next batch, of all that there is; the batch is not read by this."""
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        return self.reader.partitions(self.at, end)

    def rows(self, begin: dict[str, Any], end: dict[str, Any]) -> list[int]:
        return [n for task in self.reader.partitions(begin, end) for n in self.rows_of(task)]

    def rows_of(self, task: InputPartition) -> list[int]:
        return [
            int(fields["n"])
            for rows in self.reader.read(task)
            for fields in rows.column("fields").to_pylist(maps_as_pydicts="strict")
        ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RiverbedServer]:
    with RiverbedServer(tmp_path / "data", tmp_path, {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture
def client(server: RiverbedServer) -> redis.Redis:
    return redis.Redis(port=server.port)


@pytest.fixture
def start_another(tmp_path: Path) -> Iterator[StartAnother]:
    """Start a server on `directory`, a new one by default."""
    with contextlib.ExitStack() as servers:

        def start(directory: Path | None = None) -> RiverbedServer:
            place = directory or tmp_path / "another"
            return servers.enter_context(RiverbedServer(place, tmp_path, {"appendfsync": "no"}))

        yield start


def made_again(server: RiverbedServer, client: redis.Redis) -> redis.Redis:
    """A client of the server after its log was rewritten, and its tables were made again of that."""
    client.bgrewriteaof()
    while client.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.01)
    server.stop()
    for path in (server.directory / "state").iterdir():
        path.unlink()
    server.start()
    return redis.Redis(port=server.port)


def shut_places() -> None:
    """Close what this process has open, so that a store may run in it."""
    while locations._open_tables:
        locations._open_tables.popitem()[1][1].close()


def add(client: redis.Redis, key: str, first: int, end: int) -> list[Any]:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(first, end):
            pipeline.xadd(key, {"n": number})
        return pipeline.execute()


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["entries", "keys"])
def test_damaged_rows_of_a_live_store_are_told_as_of_this_source(tmp_path: Path, table: str) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(5):
        product.run("XADD", "s", f"{number + 1}-0", "n", number)
    product.close()
    damage(tmp_path / "data", do.change(table, b"\xff"))

    with pytest.raises(SourceError, match=r"^cannot read data: "):
        Query(tmp_path / "data").batch()


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("added", [1, 5, 10, 15, 300])
@pytest.mark.parametrize("kept", [None, 1])
def test_a_stream_that_was_deleted_and_made_again_is_told(
    server: RiverbedServer, client: redis.Redis, added: int, kept: int | None
) -> None:
    add(client, "s", 0, 10)
    client.save()
    query, lenient = Query(server.directory), Query(server.directory, failOnDataLoss=False)
    assert query.batch() == lenient.batch() == list(range(10))
    add(client, "s", 10, 20)
    client.delete("s")
    add(client, "s", 100, 100 + added)
    if kept is not None:
        client.xtrim("s", maxlen=kept, approximate=False)
    client.save()

    with pytest.raises(DataLossError, match=r"stream s was read up to .* and is another one now"):
        query.batch()
    assert lenient.batch() == list(range(100, 100 + added))[-(kept or added) :]
    assert lenient.batch() == []
    add(client, "s", 900, 901)
    client.save()
    assert lenient.batch() == [900]


def test_a_stream_that_was_made_again_with_small_ids_is_read_from_its_beginning(
    server: RiverbedServer, client: redis.Redis
) -> None:
    client.xadd("s", {"n": 1}, id="5-0")
    client.xadd("s", {"n": 2}, id="9-0")
    client.save()
    query, lenient = Query(server.directory), Query(server.directory, failOnDataLoss=False)
    assert query.batch() == lenient.batch() == [1, 2]
    client.delete("s")
    for number, entry_id in enumerate(("4-0", "5-0", "9-0")):
        client.xadd("s", {"n": 10 + number}, id=entry_id)
    client.save()

    with pytest.raises(DataLossError, match="is another one now"):
        query.batch()
    assert lenient.batch(1) == [10]
    assert lenient.batch() == [11, 12]


def test_an_error_about_a_key_of_a_stranger_commands_no_terminal(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    product.run("XADD", b"\x1b[2J\xc2\x9b31m\xff", "1-0", "n", 1)
    product.close()
    query = Query(tmp_path / "data")
    assert query.batch() == [1]
    shut_places()
    product = Product(tmp_path / "data", HandClock())
    product.run("FLUSHALL")
    product.close()

    with pytest.raises(DataLossError) as told:
        query.batch()
    assert str(told.value).isprintable()
    assert "\\x1b[2J\\x9b31m\\xff" in str(told.value)
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


def test_a_stream_that_was_deleted_is_told(server: RiverbedServer, client: redis.Redis) -> None:
    add(client, "s", 0, 10)
    add(client, "t", 50, 51)
    client.save()
    query, lenient = Query(server.directory), Query(server.directory, failOnDataLoss=False)
    assert sorted(query.batch()) == sorted(lenient.batch()) == [*range(10), 50]
    add(client, "s", 10, 20)
    client.delete("s")
    client.save()

    with pytest.raises(DataLossError, match="deleted after it was read, with all entries behind that: s"):
        query.batch()
    assert lenient.batch() == []
    add(client, "s", 100, 105)
    client.save()
    assert lenient.batch() == list(range(100, 105))


def test_what_is_deleted_between_planning_and_reading_is_told(server: RiverbedServer, client: redis.Redis) -> None:
    add(client, "s", 0, 10)
    client.save()
    query = Query(server.directory)
    end = query.reader.latestOffset(query.at, query.reader.getDefaultReadLimit())
    [batch] = query.reader.partitions(query.at, end)
    client.delete("s")
    client.save()

    with pytest.raises(DataLossError, match="a stream was deleted while it was read"):
        list(query.reader.read(batch))


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_snapshots_of_two_stores_in_a_folder_are_told(tmp_path: Path, is_trimmed: bool) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    products = []
    for number in range(2):
        product = Product(tmp_path / f"data{number}", HandClock(time.time_ns() // 1_000_000 + 1000 * number))
        for each in range(10 * (number + 1)):
            product.run("XADD", "s", "*", "n", each)
        if number and is_trimmed:  # so that as many are gone as were read of the other one
            product.run("XTRIM", "s", "MAXLEN", 10)
        product.close()
        products.append(product)
        take_snapshot(product.directory, folder / f"store-{number}", program="test")
        time.sleep(0.002)
    query = Query(folder)

    assert query.batch() == list(range(10))
    with pytest.raises(DataLossError, match="store-1 is of another store"):
        query.batch()


def numbered(directory: Path, numbers: Sequence[int], *commands: str) -> None:
    """Add entries N-0 of field n to stream s, in nodes of two, and then run commands."""
    product = Product(directory, HandClock(), node_max_entries=2)
    for number in numbers:
        product.run("XADD", "s", f"{number}-0", "n", number)
    for command in commands:
        product.run(*command.split())
    product.checkpoint()
    product.close()


_DELETED_AHEAD: Final = ("XDEL s 10-0 12-0 14-0 16-0",)


def test_entries_that_were_deleted_before_hide_no_trim(tmp_path: Path) -> None:
    numbered(tmp_path / "data", range(1, 21), *_DELETED_AHEAD)
    query, old = Query(tmp_path / "data"), Query(tmp_path / "data")
    assert query.batch(5) == old.batch(5) == [1, 2, 3, 4, 5]
    [at] = query.at["streams"].values()
    assert at[6:] == [4, "6-0"]
    old.at["streams"] = dict.fromkeys(old.at["streams"], at[:5])
    shut_places()
    numbered(tmp_path / "data", (), "XTRIM s MINID 9-0")

    with pytest.raises(
        DataLossError, match=r"stream s was trimmed up to 9-0, and was read up to 5-.* by then: 3 entries are gone"
    ):
        query.batch(5)
    assert old.batch() == [9, 11, 13, 15, 17, 18, 19, 20]  # an offset without their number is read as it was


@pytest.mark.parametrize(
    ("before", "since", "rest"),
    [
        (_DELETED_AHEAD, (), range(6, 21)),
        (_DELETED_AHEAD, ("XDEL s 18-0 20-0",), range(6, 20)),
        (_DELETED_AHEAD, ("XDEL s 6-0",), range(7, 21)),
        (("XDEL s 6-0 7-0 8-0 10-0",), (), range(9, 21)),
        (("XDEL s 7-0 10-0",), ("XDEL s 14-0 16-0",), range(6, 21)),
        ((), ("XDEL s 8-0 10-0 12-0",), range(6, 21)),
        ((), ("XDEL s 7-0 8-0",), range(6, 21)),
        (_DELETED_AHEAD, ("XDEL s 7-0 8-0 9-0 18-0",), range(6, 21)),
    ],
)
def test_entries_that_were_deleted_ahead_are_no_loss(
    tmp_path: Path, before: Sequence[str], since: Sequence[str], rest: Sequence[int]
) -> None:
    numbered(tmp_path / "data", range(1, 21), *before)
    query = Query(tmp_path / "data")
    assert query.batch(5) == [1, 2, 3, 4, 5]
    shut_places()
    numbered(tmp_path / "data", (), "XTRIM s MINID 6-0", *since)

    gone = {int(word.partition("-")[0]) for command in (*before, *since) for word in command.split()[2:]}
    assert query.batch() == [number for number in rest if number not in gone]


def test_nodes_that_were_made_again_without_old_holes_are_no_loss(tmp_path: Path) -> None:
    settings = {"appendfsync": "no", "stream-node-max-entries": "4"}
    with RiverbedServer(tmp_path / "data", tmp_path, settings) as server:
        client = redis.Redis(port=server.port)
        for number in range(1, 21):
            client.xadd("s", {"n": number}, id=f"{number}-0")
        client.xdel("s", "10-0", "12-0", "14-0", "16-0")
        client.save()
        query = Query(server.directory)
        assert query.batch(5) == [1, 2, 3, 4, 5]
        client = made_again(server, client)
        client.xtrim("s", minid="6-0", approximate=False)
        client.xdel("s", "9-0", "19-0")
        client.save()

        assert query.batch() == [6, 7, 8, 11, 13, 15, 17, 18, 20]


@pytest.mark.parametrize("trimmed", [(), ("XTRIM s MAXLEN 0",)])
def test_entries_below_what_was_read_are_told_after_the_last_id_was_set_back(
    tmp_path: Path, trimmed: Sequence[str]
) -> None:
    numbered(tmp_path / "data", (10, 20, 50), *trimmed, "XSETID s 100-0")
    query, lenient = Query(tmp_path / "data"), Query(tmp_path / "data", failOnDataLoss=False)
    read = [] if trimmed else [10, 20, 50]
    assert query.batch() == lenient.batch() == read
    shut_places()
    numbered(tmp_path / "data", (), "XSETID s 60-0")
    shut_places()
    numbered(tmp_path / "data", (70, 80, 110))

    with pytest.raises(
        DataLossError, match=r"read up to 100-0, and has entries below that since XSETID .* from 70-0 on"
    ):
        query.batch()
    assert lenient.batch() == [110]


def test_an_entry_that_is_let_in_before_the_next_one_is_not_that_one(tmp_path: Path) -> None:
    numbered(tmp_path / "data", (10, 20, 100, 110, 120))
    ended, query = Query(tmp_path / "data", endingId="100-0"), Query(tmp_path / "data")
    assert ended.batch() == [10, 20, 100]
    query.at = ended.at
    shut_places()
    numbered(tmp_path / "data", (), "XTRIM s MAXLEN 0", "XSETID s 102-0")
    shut_places()
    numbered(tmp_path / "data", (105,))

    with pytest.raises(DataLossError, match=r"trimmed up to 105-0, and was read up to 100-.* 2 entries are gone"):
        query.batch()


def test_entries_that_are_let_in_below_what_was_read_and_trimmed_are_told(tmp_path: Path) -> None:
    numbered(tmp_path / "data", (10, 20, 100))
    query = Query(tmp_path / "data")
    assert query.batch() == [10, 20, 100]
    shut_places()
    numbered(tmp_path / "data", (105, 107), "XTRIM s MAXLEN 0", "XSETID s 60-0")
    shut_places()
    numbered(tmp_path / "data", (70, 110))

    with pytest.raises(DataLossError, match=r"read up to 100-0, and has entries below that since XSETID .* from 70-0"):
        query.batch()


def test_entries_that_come_again_below_what_was_read_are_told_whatever_was_counted(tmp_path: Path) -> None:
    numbered(tmp_path / "data", range(1, 11), "XDEL s 9-0 10-0")
    query = Query(tmp_path / "data")
    assert query.batch() == [1, 2, 3, 4, 5, 6, 7, 8]
    shut_places()
    back = ("XSETID s 10-0 ENTRIESADDED 10 MAXDELETEDID 8-0", "XSETID s 8-0 ENTRIESADDED 8 MAXDELETEDID 8-0")
    numbered(tmp_path / "data", (), *back)
    shut_places()
    numbered(tmp_path / "data", (9, 10, 11))

    with pytest.raises(DataLossError, match=r"has entries below that since XSETID .* from 9-0"):
        query.batch()


def test_a_store_that_is_restored_from_before_a_trim_has_no_new_entries(tmp_path: Path) -> None:
    numbered(tmp_path / "data", (10, 20, 50), "XSETID s 100-0")
    shutil.copytree(tmp_path / "data", tmp_path / "before")
    numbered(tmp_path / "data", (), "XTRIM s MAXLEN 0")
    query = Query(tmp_path / "data")
    assert query.batch() == []
    query.read_from(tmp_path / "before")
    assert query.batch() == []
    shut_places()
    numbered(tmp_path / "before", (110,))
    assert query.batch() == [110]


# -- what is none ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted", [[0], [3], [9], [2, 9]])
def test_entries_that_were_deleted_are_no_loss_when_all_that_was_read_is_trimmed(
    server: RiverbedServer, client: redis.Redis, deleted: list[int]
) -> None:
    """Deleted one by one, that is: which of several are deleted and which trimmed, nothing tells in one node."""
    client.config_set("stream-node-max-entries", 4)
    add(client, "s", 0, 10)
    client.save()
    query = Query(server.directory)
    assert query.batch() == list(range(10))
    new = add(client, "s", 10, 20)
    client.xtrim("s", maxlen=10, approximate=False)
    client.xdel("s", *[new[at] for at in deleted])
    client.save()

    assert query.batch() == [number for number in range(10, 20) if number - 10 not in deleted]


def test_a_trim_that_went_beyond_what_was_read_is_told_although_an_entry_was_deleted(
    server: RiverbedServer, client: redis.Redis
) -> None:
    add(client, "s", 0, 10)
    client.save()
    query = Query(server.directory)
    query.batch()
    new = add(client, "s", 10, 20)
    client.xtrim("s", maxlen=5, approximate=False)
    client.xdel("s", new[7])
    client.save()

    with pytest.raises(DataLossError, match=r"stream s was trimmed up to .*: 6 entries are gone"):
        query.batch()


def test_a_store_that_is_started_often_is_the_same_store(server: RiverbedServer, client: redis.Redis) -> None:
    query = Query(server.directory)
    for number in range(4):
        add(client, "s", 10 * number, 10 * number + 10)
        client.save()
        assert query.batch() == list(range(10 * number, 10 * number + 10))
        for _ in range(3):
            server.restart()
            client = redis.Redis(port=server.port)


def test_a_store_whose_tables_were_made_again_from_its_log_is_the_same_store(
    server: RiverbedServer, client: redis.Redis
) -> None:
    add(client, "gone", 0, 1)
    client.delete("gone")
    for key in ("s", "t"):
        add(client, key, 0, 10)
    client.save()
    query = Query(server.directory)
    assert len(query.batch()) == 20
    client = made_again(server, client)
    add(client, "t", 10, 20)
    client.save()

    assert Query(server.directory).batch(1000) is not None
    assert query.batch() == list(range(10, 20))


def trim_what_was_read(query: Query, client: redis.Redis) -> None:
    """Ten entries, read; then ten others, and only these are left."""
    add(client, "s", 0, 10)
    client.save()
    assert query.batch() == list(range(10))
    add(client, "s", 10, 20)
    client.xtrim("s", maxlen=10, approximate=False)
    client.save()


def start_again(server: RiverbedServer, times: int) -> redis.Redis:
    """Start the server so often, each time with a checkpoint of something."""
    for _ in range(times):
        server.restart()
        client = redis.Redis(port=server.port)
        client.xadd("other", {"n": 0})
        client.save()
    return client


@pytest.mark.parametrize("is_of_old_version", [False, True])
def test_a_store_whose_read_entries_are_all_trimmed_is_the_same_after_any_number_of_starts(
    server: RiverbedServer, client: redis.Redis, is_of_old_version: bool
) -> None:
    query = Query(server.directory, streams='["0/s"]')
    trim_what_was_read(query, client)
    if is_of_old_version:
        query.at = of_old_version(query.at)
    start_again(server, 3)

    assert query.batch() == list(range(10, 20))


def of_old_version(at: dict[str, Any]) -> dict[str, Any]:
    """The offset as version 2 wrote it before stores had an id."""
    streams = {}
    for name, values in at["streams"].items():
        entry_id, seen, number, _, digest, *other = values
        mark = [other[0] if other else entry_id, digest]
        streams[name] = {"id": entry_id, "seen": seen, "number": number, "entry": mark}
    known = ("snapshot", "taken_ms", "replication_id")
    return {"version": 2, **{name: at[name] for name in known}, "streams": streams}


@pytest.mark.parametrize("wants_base", [False, True])
def test_a_replica_goes_on_with_the_store_of_its_primary(
    server: RiverbedServer, client: redis.Redis, start_another: StartAnother, wants_base: bool
) -> None:
    """Its tables have other numbers for the streams, when some were deleted before it received a base."""
    add(client, "gone", 0, 1)
    client = start_again(server, 2)
    query = Query(server.directory, streams='["0/s"]')
    trim_what_was_read(query, client)
    client.delete("gone")
    if wants_base:
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.01)
    replica = start_another()
    follower = redis.Redis(port=replica.port)
    follower.replicaof("127.0.0.1", server.port)
    while follower.xlen("s") != 10:
        time.sleep(0.01)
    server.kill()
    follower.replicaof("NO", "ONE")
    start_again(replica, 3)
    query.read_from(replica.directory)

    assert query.batch() == list(range(10, 20))


@pytest.mark.parametrize("kept", [1, 4])
def test_a_stream_that_was_made_again_is_told_by_a_replica_too(
    server: RiverbedServer, client: redis.Redis, start_another: StartAnother, kept: int
) -> None:
    add(client, "s", 0, 10)
    client.save()
    query = Query(server.directory)
    assert query.batch() == list(range(10))
    add(client, "s", 10, 20)
    client.delete("s")
    add(client, "s", 100, 108)
    client.xtrim("s", maxlen=kept, approximate=False)
    replica = start_another()
    follower = redis.Redis(port=replica.port)
    follower.replicaof("127.0.0.1", server.port)
    while follower.xlen("s") != kept:
        time.sleep(0.01)
    follower.save()
    query.read_from(replica.directory)

    with pytest.raises(DataLossError, match=r"stream s was read up to .* and is another one now"):
        query.batch()


def test_what_is_restored_from_a_snapshot_is_the_same_store(
    server: RiverbedServer, client: redis.Redis, start_another: StartAnother, tmp_path: Path
) -> None:
    folder, restored = tmp_path / "snapshots", tmp_path / "restored"
    folder.mkdir()
    restored.mkdir()
    client = start_again(server, 1)
    add(client, "s", 0, 10)
    client.save()
    take_snapshot(server.directory, folder / "1", program="test")
    query = Query(folder, streams='["0/s"]')
    assert query.batch() == list(range(10))
    add(client, "s", 10, 20)
    client.xtrim("s", maxlen=10, approximate=False)
    client.save()
    backup = take_snapshot(server.directory, tmp_path / "backup", program="test")
    restore_snapshot(backup, restored, steps=lambda step, done, total: None)
    start_again(start_another(restored), 3)
    take_snapshot(restored, folder / "2", program="test")

    assert query.batch() == list(range(10, 20))


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_store_in_the_place_of_another_is_told_although_all_that_was_read_is_trimmed(
    server: RiverbedServer, client: redis.Redis, start_another: StartAnother, is_started_again: bool
) -> None:
    other = start_another()
    query = Query(server.directory, streams='["0/s"]')
    trim_what_was_read(query, client)
    trim_what_was_read(Query(other.directory, streams='["0/s"]'), redis.Redis(port=other.port))
    if is_started_again:
        start_again(other, 3)
    query.read_from(other.directory)

    with pytest.raises(DataLossError, match=r"is of another store \(id [0-9a-f]{40}\) than the one that was read"):
        query.batch()


def test_a_checkpoint_of_the_first_version_is_read_on(server: RiverbedServer, client: redis.Redis) -> None:
    entry_ids = add(client, "s", 0, 20)
    client.save()
    query = Query(server.directory)
    query.at = {"snapshot": "", "taken_ms": 0, "streams": {"0/s": {"id": entry_ids[9].decode(), "seen": 10}}}

    assert query.batch() == list(range(10, 20))
    assert query.at["version"] == 3


# -- many short streams ------------------------------------------------------------------------------------------------


def test_many_short_streams_are_read_together(
    server: RiverbedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stream opened the store once, and was a batch of its own: a millisecond for an entry."""
    fill_streams(client, 300)
    query = Query(server.directory)
    [task] = query.tasks()
    opened = []
    monkeypatch.setattr(streaming, "open_place", lambda *asked: opened.append(asked) or open_place(*asked))

    [rows] = query.reader.read(task)

    assert sorted(fields["n"] for fields in rows.column("fields").to_pylist(maps_as_pydicts="strict")) == sorted(
        b"%d" % number for number in range(300)
    )
    assert len(opened) == 1


def fill_streams(client: redis.Redis, count: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(count):
        pipeline.execute_command("SELECT", number % 3)
        pipeline.xadd(f"s:{number}", {"n": number}, id=f"{1_795_257_000_000 + number}-0")
    pipeline.execute()
    client.save()


def test_an_offset_of_many_streams_is_small(server: RiverbedServer, client: redis.Redis) -> None:
    fill_streams(client, 1000)
    query = Query(server.directory)

    query.batch()

    assert len(json.dumps(query.at)) / 1000 < 65  # it was 150


@pytest.mark.parametrize(
    ("options", "tasks", "most"),
    [
        ({}, 1, 700),
        ({"minPartitions": 4}, 4, 175),
        ({"minPartitions": 7}, 7, 100),
        ({"maxRecordsPerPartition": 300}, 3, 300),
        ({"maxRecordsPerPartition": 30}, 24, 30),
        ({"maxRecordsPerPartition": 1}, 700, 1),
        ({"minPartitions": 2, "maxRecordsPerPartition": 90}, 8, 90),
    ],
)
@pytest.mark.parametrize("is_snapshot", [False, True])
def test_a_batch_has_as_many_tasks_as_the_options_ask_for(
    server: RiverbedServer,
    client: redis.Redis,
    tmp_path: Path,
    options: dict[str, int],
    tasks: int,
    most: int,
    is_snapshot: bool,
) -> None:
    add(client, "long", 0, 640)
    for number in range(60):
        add(client, f"short {number}", 640 + number, 641 + number)
    client.save()
    path = server.directory
    if is_snapshot:
        path = tmp_path / "series"
        path.mkdir()
        take_snapshot(server.directory, path / "one", program="test")
    query = Query(path, **options)
    end = query.reader.latestOffset(query.at, query.reader.getDefaultReadLimit())

    found = [query.rows_of(task) for task in query.reader.partitions(query.at, end)]

    assert sorted(n for each in found for n in each) == list(range(700))
    assert max(map(len, found)) <= most
    assert len(found) >= tasks - 1 if "minPartitions" in options else len(found) >= tasks
    assert len(found) <= 2 * tasks


@pytest.mark.parametrize("options", [{"maxRecordsPerPartition": 10}, {"minPartitions": 7}, {}])
def test_entries_deleted_between_two_tasks_have_no_other_entry_passed_over(
    server: RiverbedServer, client: redis.Redis, options: dict[str, int]
) -> None:
    ids = add(client, "s", 0, 250)
    client.save()
    query = Query(server.directory, **options)
    first, *others = query.tasks()
    read = query.rows_of(first)
    client.xdel("s", *ids[:5])
    client.save()
    assert read + [n for task in others for n in query.rows_of(task)] == list(range(250))


def test_what_is_trimmed_between_two_tasks_of_the_first_batch_is_told(
    server: RiverbedServer, client: redis.Redis
) -> None:
    add(client, "s", 0, 400)
    add(client, "t", 500, 510)
    client.save()
    query, lenient = (
        Query(server.directory, maxRecordsPerPartition=100, failOnDataLoss=strict) for strict in (True, False)
    )
    end = query.reader.latestOffset(query.at, query.reader.getDefaultReadLimit())
    tasks = [reader.reader.partitions(reader.at, end) for reader in (query, lenient)]
    assert query.rows_of(tasks[0][0]) == list(range(100))
    client.xtrim("s", maxlen=100, approximate=False)
    client.save()
    with pytest.raises(DataLossError, match="stream s was trimmed up to"):
        query.rows_of(tasks[0][1])
    assert [n for task in tasks[1] for n in lenient.rows_of(task)] == [*range(300, 400), *range(500, 510)]


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_a_trim_is_told_from_deletions_although_an_entry_was_deleted_long_before(
    server: RiverbedServer, client: redis.Redis, is_trimmed: bool
) -> None:
    ids = add(client, "s", 0, 250)
    client.xdel("s", ids[100])
    client.save()
    query = Query(server.directory)
    [task] = query.tasks()
    if is_trimmed:
        client.xtrim("s", maxlen=10, approximate=False)
    else:
        client.xdel("s", ids[0])
    client.save()
    with pytest.raises(DataLossError, match="stream s was trimmed up to") if is_trimmed else contextlib.nullcontext():
        assert query.rows_of(task) == [*range(1, 100), *range(101, 250)]


def test_a_stream_whose_largest_id_was_deleted_is_read(server: RiverbedServer, client: redis.Redis) -> None:
    last = f"{2**64 - 1}-{2**64 - 1}"
    for entry_id in ("1-1", last):
        client.xadd("s", {"n": 7}, entry_id)
    client.xdel("s", last)
    client.save()
    query = Query(server.directory)
    end = query.reader.latestOffset(query.at, query.reader.getDefaultReadLimit())
    assert query.rows(query.at, end) == [7]


def test_what_an_earlier_task_has_read_may_be_trimmed(server: RiverbedServer, client: redis.Redis) -> None:
    add(client, "s", 0, 400)
    client.save()
    query = Query(server.directory, maxRecordsPerPartition=100)
    first, *others = query.tasks()
    read = query.rows_of(first)
    client.xtrim("s", maxlen=400 - len(read), approximate=False)
    client.save()
    assert read + [n for task in others for n in query.rows_of(task)] == list(range(400))


def test_tables_that_were_made_again_between_plan_and_task_are_not_read_by_their_old_numbers(
    server: RiverbedServer, client: redis.Redis
) -> None:
    """A repair, and a full sync, give each stream another number, which may have been that of another one."""
    for key in ("a", "b", "c"):
        add(client, key, 0, 10)
    client.save()
    for failing in (True, False):
        query = Query(server.directory, streams="a", failOnDataLoss=failing)
        end = query.reader.latestOffset(query.at, query.reader.getDefaultReadLimit())
        [task] = query.reader.partitions(query.at, end)
        client.execute_command("RIVERBED", "REPAIR")
        client.save()
        with pytest.raises(SourceError, match=r"were exchanged while a batch of them was read.*start the query again"):
            query.rows_of(task)
        assert query.rows(query.at, end) == list(range(10))


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_cut_in_time_and_not_by_stream(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(100):
        for stream in range(10):
            if number % (1 + stream) == 0:
                product.run("XADD", f"s{stream}", f"{number + 1}-0", "n", number)
    folder = tmp_path / "snapshots"
    folder.mkdir()
    product.close()
    take_snapshot(product.directory, folder / "a", program="test")
    query = Query(folder)
    before = -1
    total = 0
    while rows := query.batch(40):
        assert min(rows) > before
        assert len(rows) <= 40
        before = max(rows)
        total += len(rows)

    assert total == sum(-(-100 // (1 + stream)) for stream in range(10))


@pytest.mark.parametrize("what", ["damaged", "newer", "cut", "not permitted", "without data.mdb"])
def test_a_snapshot_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = tmp_path / "series"
    folder.mkdir()
    numbered(tmp_path / "data", (1,))
    path = take_snapshot(tmp_path / "data", folder / "one", program="test").path
    (folder / "README").write_text("snapshots")
    (folder / ".temp-two").mkdir()
    (folder / ".temp-two" / "manifest.json").write_text("{")
    for name in ("three", "lost+found"):
        (folder / name).mkdir()
    (folder / "three" / "data.mdb").write_text("a copy that is not whole yet")
    (folder / "lost+found" / "manifest.json").write_text("what a disk check has found")
    query = Query(folder)
    assert query.batch() == [1]
    manifest = (path / "manifest.json").read_bytes()
    if what == "damaged":
        (path / "manifest.json").write_bytes(manifest[:-9])
    elif what == "without data.mdb":
        monkeypatch.setattr(locations, "_PATIENCE_S", 0.0)
        (path / "data.mdb").unlink()
    elif what == "cut":
        os.truncate(path / "data.mdb", 4096)
    else:
        errors = {"newer": VersionError("its version is 99"), "not permitted": PermissionError(13, "not permitted")}

        def refused(_path: Path) -> Snapshot:
            raise errors[what]

        monkeypatch.setattr(locations, "open_snapshot", refused)

    with pytest.raises(SourceError, match=r"^cannot read .*"):
        query.batch()
    with pytest.raises(SourceError, match=r"^cannot read .*"):
        query.reader.prepareForTriggerAvailableNow()


def test_a_snapshot_that_is_deleted_while_it_is_looked_at_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "series"
    folder.mkdir()
    numbered(tmp_path / "data", (1,))
    take_snapshot(tmp_path / "data", folder / "one", program="test")

    def deleted(path: Path) -> Snapshot:
        path.rename(folder / ".temp-one")
        raise CorruptionError(str(path / "data.mdb"), None, "the manifest speaks of it, and it is missing")

    monkeypatch.setattr(locations, "open_snapshot", deleted)
    assert Query(folder).batch() == []


@pytest.mark.parametrize("first", ["data.mdb", "streams.jsonl"])
def test_a_snapshot_that_is_being_deleted_file_by_file_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """As `rm -r` does, which is over with one file seconds later where that is long."""
    folder = tmp_path / "series"
    folder.mkdir()
    numbered(tmp_path / "data", (1,))
    path = take_snapshot(tmp_path / "data", folder / "one", program="test").path
    (path / first).unlink()
    monkeypatch.setattr(locations.time, "sleep", lambda seconds: shutil.rmtree(path))
    assert Query(folder).batch() == []


def test_all_that_the_snapshots_have_at_the_beginning_is_available(tmp_path: Path) -> None:
    """Also a stream that the last of them has no more, or again with lower IDs; and nothing of a later one."""
    folder = tmp_path / "snapshots"
    folder.mkdir()

    def taken(name: str, *commands: str) -> None:
        product = Product(tmp_path / "data", HandClock())
        for command in commands:
            product.run(*command.split())
        freeze(product, folder / name)
        time.sleep(0.01)  # snapshots are in the order of their times

    taken("a", "XADD gone 1-0 n 1", "XADD again 5-0 n 2", "XADD stays 1-0 n 3")
    taken("b", "DEL gone", "DEL again", "XADD again 1-0 n 4", "XADD stays 2-0 n 5")
    query = Query(folder, failOnDataLoss=False)
    query.reader.prepareForTriggerAvailableNow()
    taken("c", "XADD stays 3-0 n 6")
    found = []
    while batch := query.batch():
        found += batch
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert Query(folder, failOnDataLoss=False).reader.latestOffset(query.at, ReadMaxRows(9)) != query.at
