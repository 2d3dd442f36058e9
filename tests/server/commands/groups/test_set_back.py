"""A long group read reads entries from a view, while XSETID sets the last ID back and IDs are given once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.request import Request
from riverbed.server.commands.slices import SlicedCommand
from riverbed.server.protocol.replies import LongReply
from riverbed.store.tables.view import View
from tests.support.in_process import HandClock, Product, value_of
from tests.support.raw import parse

COUNT = 1_500
LAST = 1_399  # those behind it are deleted
DELETED = [f"{number}-0" for number in range(LAST + 1, COUNT + 1)]


@pytest.fixture
def product(tmp_path: Path) -> Product:
    """A stream of which a reply is too long for memory."""
    product = Product(tmp_path / "store", HandClock())
    for number in range(1, COUNT + 1):
        product.run("XADD", "s", f"{number}-0", "f", "v" * 3_000)
    product.run("XGROUP", "CREATE", "s", "g", 0)
    product.checkpoint()
    return product


def read(product: Product, line: str, meanwhile: Callable[[], None]) -> Any:
    """The reply to a read that waits for a view; `meanwhile` happens behind its first step with that."""
    request = Request(product.session, product.engine.txn)
    request.now_ms = product.clock.now_ms
    request.argv = line.encode().split()
    reply = client_command(request.argv).handler(request)
    while isinstance(reply, SlicedCommand):
        has_view = reply.needs_view
        if has_view:
            product.engine.commit(product.clock.now_ms)
            product.engine.checkpoint()
            reply.show(View(product.engine.tables))
        reply = reply.step(reply.request)
        product.engine.commit(product.clock.now_ms)
        if has_view:
            meanwhile()
    assert isinstance(reply, LongReply)
    wire = b"".join(reply.pieces)
    reply.close()
    [[_, entries]] = value_of(parse(wire))
    return {entry_id.decode(): fields for entry_id, fields, *_ in entries}


@pytest.mark.parametrize("new_id", ["1450-0", "1450-5", "1500-0"])
@pytest.mark.parametrize("is_read_again", [False, True])
def test_an_id_that_is_given_once_more_is_that_of_the_new_entry(
    product: Product, new_id: str, is_read_again: bool
) -> None:
    if is_read_again:
        for _ in range(0, COUNT, 500):
            product.run("XREADGROUP", "GROUP", "g", "c", "COUNT", 500, "STREAMS", "s", ">")
            product.checkpoint()

    def give_again() -> None:
        product.run("XDEL", "s", *DELETED)
        product.run("XSETID", "s", DELETED[-1], "MAXDELETEDID", "1-0")
        product.run("XSETID", "s", f"{LAST}-0")
        product.run("XADD", "s", new_id, "new", "one")
        if is_read_again:
            product.run("XCLAIM", "s", "g", "c", 0, new_id, "FORCE", "JUSTID")

    entries = read(product, f"XREADGROUP GROUP g c STREAMS s {'0' if is_read_again else '>'}", give_again)
    assert entries[new_id] == [b"new", b"one"]
    assert entries[f"{LAST}-0"] == [b"f", b"v" * 3_000]
    assert product.run("XLEN", "s") == LAST + 1
    product.close()
