"""Fixtures: a store in a temporary directory, checked for broken invariants when a test is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from riverbed.store.check import check
from riverbed.store.log.files import plain, requests
from riverbed.store.log.streamed import batch as log_batch
from riverbed.store.log.streamed import stream as log_stream
from tests.support.store.stores import Store

OpenStore = Callable[..., Store]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Open a store with options; afterwards every one is closed and checked."""
    stores: list[Store] = []

    def open_one(**options: Any) -> Store:
        directory = tmp_path / f"store-{len(stores)}"
        stores.append(Store(directory, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.commit()
        store.engine.close()
        assert [str(violation) for violation in check(store.directory, files=store.files)] == []


@pytest.fixture(scope="module", params=[True, False], ids=["native", "hiredis"])
def log_parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Logs are read by the native module, and by what takes its place where it was not built."""
    with pytest.MonkeyPatch.context() as patch:
        for reader in (plain, requests, log_batch, log_stream):
            patch.setattr(reader, "IS_NATIVE", request.param)
        yield


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A store whose nodes hold four entries."""
    return open_store(node_max_entries=4)
