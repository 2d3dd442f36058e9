from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverbed.tools.text.entryjson import decode_entry, encode_entry, row_words


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), min_size=1, max_size=5))
def test_any_entry_survives_the_way_to_json_and_back(pairs: list[tuple[bytes, bytes]]) -> None:
    words = [word for pair in pairs for word in pair]
    line = encode_entry(b"1-1", words)
    assert "\n" not in line
    assert decode_entry(line) == (b"1-1", words)


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), min_size=1, max_size=5))
def test_any_text_survives_the_way_to_json_and_back(pairs: list[tuple[str, str]]) -> None:
    words = [word.encode() for pair in pairs for word in pair]
    assert decode_entry(encode_entry(b"1-1", words)) == (b"1-1", words)


def test_nothing_that_a_terminal_obeys_is_in_a_line() -> None:
    words = ["\x1b[2J\x9b31m".encode(), "\u202e\U000e0001caf\u00e9".encode()]
    line = encode_entry(b"1-1", words)
    assert line == '{"id": "1-1", "fields": {"\\u001b[2J\\u009b31m": "\\u202e\\udb40\\udc01caf\u00e9"}}'
    assert decode_entry(line)[1] == words


def test_members_of_an_object_become_fields() -> None:
    line = '{"text": "t", "number": 1.50, "big": 12345678901234567890, "yes": true, "none": null, "list": [1, "ä"]}'
    words = ["text", "t", "number", "1.50", "big", "12345678901234567890", "yes", "true", "list", '[1, "ä"]']
    assert decode_entry(line) == (None, [word.encode() for word in words])


def test_whole_numbers_stay_as_they_are_written() -> None:
    digits = "9" * 5000
    words = ["zero", "-0", "large", digits, "within", f'[-0, {{"a": {digits}}}, 1E5]']
    line = f'{{"zero": -0, "large": {digits}, "within": [-0, {{"a": {digits}}}, 1E5]}}'
    assert decode_entry(line) == (None, [word.encode() for word in words])
    assert decode_entry('{"pairs": [["a", -0]]}') == (None, [b"a", b"-0"])


def test_a_member_may_be_the_id() -> None:
    assert decode_entry('{"at": 17, "v": "x"}', "at") == (b"17", [b"v", b"x"])
    assert row_words({"at": "5-1", "v": "x"}, "at") == (b"5-1", [b"v", b"x"])


def test_an_object_with_an_id_of_its_own_meaning_is_a_row() -> None:
    assert decode_entry('{"id": 7, "name": "x"}') == (None, [b"id", b"7", b"name", b"x"])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "1",
        "null",
        "{}",
        '{"a": null}',
        '{"fields": {}}',
        '{"fields": 7}',
        '{"pairs": 77}',
        '{"pairs": [["a"]]}',
        '{"pairs": [[1, 2]]}',
        '{"pairs_base64": [["?", "AA=="]]}',
        '{"id": 7, "fields": {"a": "b"}}',
        '{"a": 1, "at": null}',
        "[" * 100_000,
        '{"a": 1, "a": 2}',
        '{"a": {"b": 1, "b": 2}}',
        '{"fields": {"a": "1", "a": "2"}}',
        '{"fields": {"a": null}}',
    ],
)
def test_lines_that_are_no_entries_are_told(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_entry(line, "at")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"pairs": ["de", "fr"]}', "pairs is no list of lists, each of a name and a value"),
        ('{"pairs": {"de": 5, "fr": 7}}', "pairs is no list of lists, each of a name and a value"),
        ('{"pairs": [{"name": "x", "value": "y"}]}', "pairs is no list of lists, each of a name and a value"),
        ('{"pairs": [["a", "b", "c"]]}', "pairs is no list of lists, each of a name and a value"),
        ('{"pairs_base64": ["QQ"]}', "pairs_base64 is no list of lists, each of a name and a value"),
        ('{"pairs_base64": [["QQ==", 7]]}', "not base64: 7"),
        ('{"pairs_base64": [["QQ==", "\u00e4"]]}', "not base64: '\u00e4'"),
        ('{"fields": ["de", "fr"]}', "fields is no object of names and values"),
        ('{"id": "1-1", "fields": [["a", "1"]]}', "fields is no object of names and values"),
        ('{"a": "\\ud800"}', "\\ud800 without its other half is no character"),
        ('{"\\udfff": [1]}', "\\udfff without its other half is no character"),
        ('{"fields": {"a": ["\\ud83d"]}}', "\\ud83d without its other half is no character"),
        ('{"id": "\\ud83d", "fields": {"a": "b"}}', "\\ud83d without its other half is no character"),
        (b'{"a": "\xff"}', "not UTF-8"),
    ],
)
def test_what_only_looks_like_an_entry_is_told(line: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(reason)}\Z"):
        decode_entry(line)


def test_numbers_stay_as_they_are_written() -> None:
    line = '{"price": 1.10, "long": 0.1234567890123456789, "large": 1e400, "whole": 12345678901234567890}'
    words = [
        b"price",
        b"1.10",
        b"long",
        b"0.1234567890123456789",
        b"large",
        b"1e400",
        b"whole",
        b"12345678901234567890",
    ]
    assert decode_entry(line) == (None, words)


def test_numbers_within_lists_and_objects_stay_as_they_are_written() -> None:
    line = (
        '{"a": {"x": 1e400, "price": 1.10, "more": [0.1234567890123456789, [1.0e2, -0.0, 7], {}, [], null, "\\u00fc"]}}'
    )
    value = '{"x": 1e400, "price": 1.10, "more": [0.1234567890123456789, [1.0e2, -0.0, 7], {}, [], null, "ü"]}'
    assert decode_entry(line) == (None, [b"a", value.encode()])
    assert decode_entry('{"id": "1-1", "fields": {"a": [1.50]}}') == (b"1-1", [b"a", b"[1.50]"])


def test_what_is_nested_too_deeply_is_told() -> None:
    def line(depth: int) -> str:
        return '{"a": ' + "[" * depth + "]" * depth + "}"

    assert decode_entry(line(200)) == (None, [b"a", b"[" * 200 + b"]" * 200])
    for depth in (2_000, 100_000):
        with pytest.raises(ValueError, match="too deeply nested"):
            decode_entry(line(depth))
