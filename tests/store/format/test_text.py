"""Words in quotes, as Redis writes and reads them."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from riverbed.store.format.text import quote_text, split_text


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 2**60)), max_size=5))
def test_any_file_name_survives_quoting(names: list[tuple[bytes, int]]) -> None:
    for raw, _ in names:
        name = os.fsdecode(raw)
        assert split_text(f"file {quote_text(name)} seq 1\n") == ["file", name, "seq", "1"]


def test_quoting_is_what_redis_writes() -> None:
    assert quote_text("appendonly.aof.1.incr.aof") == "appendonly.aof.1.incr.aof"
    assert quote_text("a b") == '"a b"'
    assert quote_text('a"\\\n\x01') == '"a\\"\\\\\\n\\x01"'
    assert split_text("'it\\'s' \"\\x41\\t\"") == ["it's", "A\t"]


def test_a_quote_may_open_inside_a_character() -> None:
    assert split_text(os.fsdecode(b'\xc3"\xa9"')) == ["\u00e9"]
