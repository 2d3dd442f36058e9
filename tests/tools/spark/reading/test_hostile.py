from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from crc32c import crc32c
from pyspark.sql import SparkSession, functions

from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, STREAMS_NAME
from riverbed.store.snapshot.reader import Snapshot
from riverbed.tools.spark.errors import DataLossError, OptionError, SourceError
from riverbed.tools.spark.reading.batch import SnapshotReader
from riverbed.tools.spark.reading.options import Table, read_options
from riverbed.tools.spark.reading.schemas import default_schema
from tests.conftest import base_seed
from tests.support.faults.proxy import Proxy
from tests.support.in_process import HandClock, Product
from tests.support.servers import RiverbedServer
from tests.support.store.forged import LENGTHS, forge_length, forge_page
from tests.tools.spark.stores import answers, comparable, freeze, parts, random_store, rows_read


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    product = Product(tmp_path / "data", HandClock())
    for number in range(300):
        product.run("XADD", f"s{number % 3}", f"{1 + number}-0", "n", number)
    return freeze(product, tmp_path / "snapshot", 10)


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [DATA_NAME, STREAMS_NAME, MANIFEST_NAME])
def test_a_flipped_bit_anywhere_is_told(snapshot: Path, tmp_path: Path, name: str) -> None:
    chance = random.Random(base_seed())
    sound = (snapshot / name).read_bytes()
    for number in range(25):
        bit = chance.randrange(8 * len(sound))
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        # A name of its own, as a reader that opened the one before keeps it.
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(snapshot, copy)
        (copy / name).write_bytes(damaged)

        with pytest.raises((SourceError, DataLossError)):
            rows_read(copy, cacheDirectory=tmp_path / "cache")


@pytest.mark.parametrize("options", [{"verify": "always"}, {"fetch": "true"}])
def test_forged_pages_of_what_comes_from_others_never_reach_lmdb(
    snapshot: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    """LMDB would end the worker's process.  A checksum does not tell them: the manifest was forged with them."""
    forge_page(snapshot)

    with pytest.raises(SourceError, match="a page is damaged"):
        rows_read(snapshot, cacheDirectory=tmp_path / "cache", **options)


@pytest.mark.parametrize("length", LENGTHS, ids=lambda length: length[:32])
def test_a_length_that_no_stream_can_have_ends_the_planning(snapshot: Path, tmp_path: Path, length: str) -> None:
    """Planning by it would never end: a span for each two million rows."""
    forge_length(snapshot, length)

    for options in ({}, {"minPartitions": 4}, {"maxRecordsPerPartition": 2}, {"stream": "s0"}):
        with pytest.raises(SourceError, match=rf"cannot plan the read: .*{STREAMS_NAME}"):
            parts(snapshot, cacheDirectory=tmp_path / "cache", **options)


@pytest.mark.parametrize("name", [DATA_NAME, STREAMS_NAME, MANIFEST_NAME])
def test_a_truncated_or_missing_file_is_told(snapshot: Path, tmp_path: Path, name: str) -> None:
    sound = (snapshot / name).read_bytes()
    for size in (0, 1, len(sound) // 2, len(sound) - 1):
        (snapshot / name).write_bytes(sound[:size])
        with pytest.raises(SourceError, match=f"{name}"):
            rows_read(snapshot, cacheDirectory=tmp_path / "cache")
    (snapshot / name).unlink()
    with pytest.raises(SourceError):
        rows_read(snapshot, cacheDirectory=tmp_path / "cache")


def test_bytes_are_compared_once_always_or_never_as_asked(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Path] = []
    verify = Snapshot.verify

    def count(self: Snapshot) -> None:
        compared.append(self.path)
        verify(self)

    monkeypatch.setattr(Snapshot, "verify", count)

    def comparisons(how: str) -> int:
        compared.clear()
        found = parts(snapshot, verify=how, minPartitions=4, cacheDirectory=tmp_path / "cache")
        assert len(found) > 2
        return len(compared) if how != "always" else len(compared) // len(found)

    assert [comparisons(how) for how in ("never", "once", "once", "always", "ONCE")] == [0, 1, 0, 1, 0]
    os.utime(snapshot / DATA_NAME)
    assert comparisons("once") == 1
    with pytest.raises(OptionError, match="verify must be one of always, once, never"):
        read_options({"path": "x", "verify": "true"})


def test_what_is_changed_after_it_was_compared_is_compared_again(snapshot: Path, tmp_path: Path) -> None:
    assert len(rows_read(snapshot, cacheDirectory=tmp_path / "cache")) == 300
    with (snapshot / DATA_NAME).open("r+b") as file:
        file.seek(9000)
        byte = file.read(1)[0]
        file.seek(9000)
        file.write(bytes([byte ^ 16]))

    with pytest.raises(SourceError, match="damaged snapshot"):
        rows_read(snapshot, cacheDirectory=tmp_path / "cache")


# -- what is no snapshot of ours ---------------------------------------------------------------------------------------


def _newer(folder: Path, snapshot: Path) -> None:
    """The manifest of a version to come, with a sound guard."""
    shutil.copytree(snapshot, folder, dirs_exist_ok=True)
    text = (folder / MANIFEST_NAME).read_bytes().replace(b'"version": 1', b'"version": 2', 1)
    body = re.sub(rb',\n "crc32c": "[0-9a-f]{8}"\n}\n$', b"", text)
    (folder / MANIFEST_NAME).write_bytes(body + b',\n "crc32c": "%08x"\n}\n' % crc32c(body))


def _foreign(folder: Path, snapshot: Path) -> None:
    (folder / MANIFEST_NAME).write_text(json.dumps({"format": "iceberg", "version": 2}))


def _redis(folder: Path, snapshot: Path) -> None:
    (folder / "appendonlydir").mkdir()
    (folder / "dump.rdb").write_bytes(b"REDIS0011")


def _file(folder: Path, snapshot: Path) -> None:
    folder.rmdir()
    folder.write_text("not a folder")


def _state(folder: Path, snapshot: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state" / DATA_NAME).write_bytes(bytes(100_000))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_newer, "version 2"),
        (_foreign, "manifest.json"),
        (_redis, "not a snapshot: it has no manifest"),
        (_file, "not a snapshot: it is not a directory"),
        (_state, "cannot read the store"),
        (lambda folder, snapshot: None, "not a snapshot: it has no manifest"),
        (lambda folder, snapshot: folder.rmdir(), "no snapshot"),
    ],
)
def test_what_is_no_snapshot_of_ours_is_told(
    tmp_path: Path, snapshot: Path, make: Callable[[Path, Path], None], reason: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder, snapshot)

    with pytest.raises(SourceError, match=reason) as caught:
        rows_read(folder, cacheDirectory=tmp_path / "cache")
    assert "\n" not in str(caught.value)


# -- what goes away ----------------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_deleted_under_a_reader_gives_all_rows_or_an_error(snapshot: Path, tmp_path: Path) -> None:
    asked = {"path": str(snapshot), "batchRows": "7", "minPartitions": "3", "cacheDirectory": str(tmp_path / "cache")}
    reader = SnapshotReader(read_options(asked), default_schema(Table.ENTRIES))
    lenient = SnapshotReader(read_options(asked | {"failOnDataLoss": "false"}), default_schema(Table.ENTRIES))
    first, second, *_ = reader.partitions()
    batches = reader.read(first)
    rows = next(batches).num_rows
    shutil.rmtree(snapshot)

    assert rows + sum(batch.num_rows for batch in batches) == 100
    with pytest.raises(DataLossError, match="the snapshot was deleted while it was read"):
        list(reader.read(second))
    assert list(lenient.read(second)) == []


def test_keys_and_names_that_are_no_text_are_shown_and_kept(tmp_path: Path) -> None:
    product = random_store(tmp_path / "data", 1, commands=0)
    keys = [b"\xff", b"\\xff", b"", b"k\r\n\x00\xc3", "ö".encode()]
    for number, key in enumerate(keys):
        product.run("XADD", key, f"{1 + number}-0", b"\xfe", key)
        product.run("XGROUP", "CREATE", key, b"g\xff", "0")
        product.run("XREADGROUP", "GROUP", b"g\xff", b"c\xff", "STREAMS", key, ">")
    expected = answers(product)
    path = freeze(product, tmp_path / "snapshot")

    rows = rows_read(path, cacheDirectory=tmp_path / "cache")
    assert comparable(rows, "snapshot") == comparable(expected[Table.ENTRIES])
    assert sorted(row["fields"]["\\xfe"] for row in rows) == sorted(keys)
    pending = rows_read(path, Table.PENDING, cacheDirectory=tmp_path / "cache")
    assert {(row["group"], row["consumer"]) for row in pending} == {("g\\xff", "c\\xff")}


# -- workers that die --------------------------------------------------------------------------------------------------


def _workers() -> Iterator[Path]:
    for path in Path("/proc").glob("[0-9]*"):
        if path.name != str(os.getpid()) and b"pyspark" in _read(path / "cmdline"):
            yield path


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def _who_has_open(ends: Callable[[str], bool]) -> list[int]:
    """Workers with a file descriptor whose name is one that is looked for."""
    found = []
    for worker in _workers():
        with contextlib.suppress(OSError):
            if any(ends(os.readlink(fd)) for fd in (worker / "fd").iterdir()):
                found.append(int(worker.name))
    return found


def _who_speaks_from(port: int) -> list[int]:
    """The worker that has a connection from a port of this machine."""
    local = b"0100007F:%04X" % port
    rows = [line.split() for line in _read(Path("/proc/net/tcp")).splitlines()]
    sockets = {f"socket:[{row[9].decode()}]" for row in rows if row[1] == local}
    return _who_has_open(lambda name: name in sockets)


def test_a_worker_that_is_killed_while_it_reads_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    # So many bytes that pipes and sockets cannot hold them: who reads them waits for who takes them.
    count, size = 6000, 1500
    product = Product(tmp_path / "data", HandClock())
    for number in range(count):
        product.run("XADD", "s", f"{1 + number}-0", "n", number, "long", bytes(size))
    path = freeze(product, tmp_path / "snapshot")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(120)
    port = listener.getsockname()[1]

    def waits(number: int, long: bytes) -> int:
        """With the first row until the test has killed who reads the others."""
        import contextlib
        import socket

        if number == 0:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
                connection.recv(1)
        return number + len(long)

    killed: list[int] = []

    def kill() -> None:
        with listener, contextlib.suppress(OSError), listener.accept()[0]:
            killed.extend(_who_has_open(lambda name: name.startswith(f"{path}/")))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    read = spark.read.format("riverbed").schema("n int, long binary").option("batchRows", 20)
    frame = read.option("cacheDirectory", str(tmp_path / "cache")).load(str(path))
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        rows = frame.select(functions.udf(waits, "int", useArrow=False)("n", "long").alias("n")).collect()
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        killer.join()

    assert sorted(row.n for row in rows) == list(range(size, size + count))
    assert len(killed) == 1


def test_a_worker_that_is_killed_while_it_writes_costs_no_row_and_doubles_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    killed: list[int] = []
    lock = threading.Lock()

    def kill(port: int, passed: int) -> None:
        """Before it learns that some pipelines of its rows were added: the first that gets so far."""
        with lock:
            if passed > 5000 and not killed:
                killed.extend(_who_speaks_from(port))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

    with (
        RiverbedServer(tmp_path / "data", tmp_path, {"appendfsync": "no"}) as server,
        Proxy(lambda: server.port) as proxy,
    ):
        proxy.hold = kill
        frame = spark.range(0, 4000, numPartitions=2).select(functions.col("id").alias("n"))
        write = frame.write.format("riverbed").mode("append").option("server", f"127.0.0.1:{proxy.port}")
        write.option("stream", "s").option("pipelineRows", 50).save()

        client = redis.Redis(port=server.port)
        assert sorted(int(fields[b"n"]) for _, fields in client.xrange("s")) == list(range(4000))
        assert len(killed) == 1
