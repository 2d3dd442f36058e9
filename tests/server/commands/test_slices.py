"""Parts of replies that commands in slices make."""

from __future__ import annotations

from riverbed.server.commands.slices import joined
from tests.support.raw import RawClient, parse


def test_the_short_parts_of_a_slice_are_one_part_and_long_ones_are_not_copied() -> None:
    short, long = [b"$1\r\na\r\n"] * 256, [b"x" * 100_000] * 3
    assert joined(short) == [b"".join(short)]
    assert joined(long) is long
    assert b"".join(joined([])) == b""


def test_long_and_short_keys_are_listed_once_each(client: RawClient) -> None:
    names = {b"k%d" % number for number in range(3000)} | {b"long" * 30_000}
    client.pipeline([("XADD", name, "1-1", "f", "v") for name in sorted(names)])
    assert {key.text for key in client.tree("KEYS", "*").children or ()} == names
    cursor, keys = client.tree("SCAN", "0", "COUNT", 5000).children or ()
    assert cursor.text == b"0"
    assert {key.text for key in keys.children or ()} == names
    assert parse(client.ask("KEYS", "nothing*")).children == ()
