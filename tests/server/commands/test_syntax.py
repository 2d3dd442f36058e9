from __future__ import annotations

import pytest

from riverbed.server.commands.syntax import Argument, format_syntax, parse_syntax

LINES = [
    "",
    "key",
    "key [key ...]",
    "key seconds [NX | XX | GT | LT]",
    "[ASYNC | SYNC]",
    "[section [section ...]]",
    "parameter value [parameter value ...]",
    "key [NOMKSTREAM] [<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] <* | id> field value [field value ...]",
    "key [IDMPAUTO producer-id | IDMP producer-id idempotent-id]",
    "GROUP group consumer [COUNT count] [NOACK] STREAMS key [key ...] id [id ...]",
    "key [FULL [COUNT count]]",
    "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
    "<ERROR message | SLEEP seconds | HELP>",
]


@pytest.mark.parametrize("line", LINES)
def test_the_arguments_say_what_the_line_says(line: str) -> None:
    assert format_syntax(parse_syntax(line)) == line


def test_small_letters_make_an_argument_and_capitals_a_token() -> None:
    assert parse_syntax("key ABSOLUTE ~") == (
        Argument("key", "key"),
        Argument("absolute", "pure-token", token="ABSOLUTE"),
        Argument("~", "pure-token", token="~"),
    )


def test_a_token_belongs_to_the_argument_behind_it() -> None:
    assert parse_syntax("[COUNT count]") == (Argument("count", "integer", token="COUNT", optional=True),)


def test_a_token_before_several_arguments_makes_a_block() -> None:
    (block,) = parse_syntax("[IDMP pid iid]")
    assert (block.kind, block.token, block.optional) == ("block", "IDMP", True)
    assert [argument.name for argument in block.arguments] == ["pid", "iid"]


def test_what_is_repeated_is_one_argument() -> None:
    assert parse_syntax("key [key ...]") == (Argument("key", "key", multiple=True),)
    (pairs,) = parse_syntax("field value [field value ...]")
    assert (pairs.kind, pairs.multiple, len(pairs.arguments)) == ("block", True, 2)


def test_alternatives_are_one_argument() -> None:
    (choice,) = parse_syntax("[NX | XX]")
    assert (choice.kind, choice.optional) == ("oneof", True)
    assert [argument.token for argument in choice.arguments] == ["NX", "XX"]


@pytest.mark.parametrize("line", ["[key", "key]", "<a | b", "[key [value ...]]", "a | b"])
def test_a_malformed_line_is_a_bug(line: str) -> None:
    with pytest.raises(AssertionError):
        parse_syntax(line)
