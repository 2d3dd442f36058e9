"""What is said of the request reader holds with either parser of plain requests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from riverbed.server.protocol import request_reader
from riverbed.server.protocol.fast_reader import PlainReader
from riverbed.server.protocol.native_reader import NativeReader


@pytest.fixture(scope="module", autouse=True, params=[NativeReader, PlainReader])
def plain_reader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Request readers have this parser, and the native one is there to be tested."""
    import_module("riverbed.store.wire.native")  # it must have been built

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_reader, "new_plain_reader", request.param)
        yield
