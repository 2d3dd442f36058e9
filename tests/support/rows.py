"""Whether our table of commands says what Redis's says."""

from __future__ import annotations

from tests.support.pair import Pair


def assert_same_row(pair: Pair, name: str) -> None:
    """The first seven members of COMMAND INFO agree.  Redis's allow_busy is about scripts, which there are none of."""
    rows = []
    for client in (pair.ours, pair.theirs):
        (row,) = client.tree("COMMAND", "INFO", name).children or ()
        members = row.children or ()
        flags = {flag.text for flag in members[2].children or ()} - {b"allow_busy"}
        categories = {category.text for category in members[6].children or ()}
        rows.append((members[0], members[1], flags, members[3:6], categories))
    assert rows[0] == rows[1], name
