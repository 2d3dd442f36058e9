"""What a tool that reads files says when it is given anything but a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.arrow import open_store
from riverbed.tools.console.console import Failure
from riverbed.tools.offline.storestat import tables_at_rest
from tests.support.in_process import HandClock, Product


@pytest.fixture
def data(tmp_path: Path) -> Path:
    product = Product(tmp_path / "data", HandClock())
    product.run("XADD", "s", "1-1", "n", 1)
    product.close()
    for name in ("monday", "tuesday"):
        take_snapshot(product.directory, product.directory / "snapshots" / name, program="test")
    return product.directory


def refusal(path: Path) -> str:
    with pytest.raises(Failure) as raised, tables_at_rest(path):
        pass
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *((name, name) for name in ("127.0.0.1:6379", "localhost:1", ":6379")),
        ("redis://localhost", "redis:/localhost"),
        ("rediss://a:secret@b:1/2", "rediss:/(redacted)@b:1/2"),
    ],
)
def test_the_data_directory_of_a_server_is_asked_for(name: str, shown: str) -> None:
    what = "name its data directory, while it runs too, or a snapshot"
    assert refusal(Path(name)) == f"{shown} is a server, and this reads files: {what}"


def test_a_path_that_is_not_there_is_told_with_what_to_name(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"there is no {tmp_path / 'none'}: name a data directory or a snapshot"


@pytest.mark.parametrize("part", ["state", "state/data.mdb", "appendonlydir", "appendonlydir/appendonly.aof.manifest"])
def test_a_part_of_a_data_directory_leads_to_it(data: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(data / part) == f"{data / part} is in the data directory {data}: name that, or a snapshot"
    monkeypatch.chdir(data)
    assert refusal(Path(part)) == f"{part} is in the data directory {data}: name that, or a snapshot"


def test_a_folder_of_snapshots_leads_to_the_newest_of_them(data: Path) -> None:
    folder = data / "snapshots"
    assert refusal(folder) == f"{folder} is a folder of snapshots: name one of them, such as {folder / 'tuesday'}"
    with open_store(folder / "tuesday") as store:
        assert [row["n"] for row in store.to_arrow("s").to_pylist()] == ["1"]
