"""The numbers that requests may have: canonical decimals, as Redis reads them."""

from __future__ import annotations

import pytest

from riverbed.server.commands.arguments import INT64_MAX, INT64_MIN, parse_int
from riverbed.server.errors import CommandError


@pytest.mark.parametrize("number", [*range(-11, 1100), INT64_MIN, INT64_MAX])
def test_a_number_is_read_as_it_is_written(number: int) -> None:
    assert parse_int(b"%d" % number) == number


@pytest.mark.parametrize("word", [b"", b"-", b"00", b"01", b"-0", b"-01", b"+1", b" 1", b"1 ", b"1_0", b"1.0", b"0x1"])
def test_what_is_no_canonical_decimal_is_refused(word: bytes) -> None:
    with pytest.raises(CommandError):
        parse_int(word)


@pytest.mark.parametrize("number", [INT64_MIN - 1, INT64_MAX + 1, 10**19, 10**40])
def test_a_number_of_more_than_64_bits_is_refused(number: int) -> None:
    with pytest.raises(CommandError):
        parse_int(b"%d" % number)
