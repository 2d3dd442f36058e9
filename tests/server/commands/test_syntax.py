from __future__ import annotations

import pytest

from riverbed.server.commands.syntax import Argument, format_syntax, key_words, parse_syntax, word_count

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


@pytest.mark.parametrize(
    ("line", "count", "is_exact"),
    [
        ("XLEN key", 2, True),
        ("XINFO STREAM key [FULL [COUNT count]]", 3, False),
        ("DEL key [key ...]", 2, False),
        ("REPLICAOF <host port | NO ONE>", 3, True),
        ("DEBUG <DIGEST | ERROR message>", 2, False),
        ("XADD key [<MAXLEN | MINID> threshold] <* | id> field value [field value ...]", 5, False),
        ("CLIENT LIST [TYPE <NORMAL | PUBSUB>] [ID client-id [client-id ...]]", 2, False),
        ("X <a | <b c | d e> f>", 2, False),
    ],
)
def test_the_fewest_words_of_a_line_are_those_that_may_not_be_left_out(line: str, count: int, is_exact: bool) -> None:
    assert word_count(line) == (count, is_exact)


@pytest.mark.parametrize(
    ("syntax", "keys"),
    [
        ("", (0, False)),
        ("message", (0, False)),
        ("key db", (1, False)),
        ("key [COUNT count]", (1, False)),
        ("key newkey", (2, False)),
        ("key group [DEADLETTER key]", (1, False)),
        ("key [key ...]", (1, True)),
        ("[shardchannel [shardchannel ...]]", (1, True)),
        ("GROUP group consumer STREAMS key [key ...]", (0, False)),
    ],
)
def test_keys_are_the_first_words_of_a_syntax(syntax: str, keys: tuple[int, bool]) -> None:
    assert key_words(syntax) == keys
