from __future__ import annotations

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient


@pytest.mark.parametrize("line", ["OBJECT", "OBJECT ENCODING", "OBJECT HELP a"])
def test_word_counts_are_checked_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line).startswith(b"-ERR wrong number of arguments for '")


@pytest.mark.parametrize("subcommand", ["ENCODING", "REFCOUNT", "IDLETIME", "FREQ", "encoding"])
def test_object_answers_as_redis_does(pair: Pair, subcommand: str) -> None:
    assert pair.ask("OBJECT", subcommand, "a") == b"$-1\r\n"
    pair.ask("XADD", "a", "1-1", "field", "value")
    pair.ask("OBJECT", subcommand, "a")


def test_object_names_the_encoding(client: RawClient) -> None:
    client.ask("XADD", "a", "1-1", "field", "value")
    assert client.ask("OBJECT", "ENCODING", "a") == b"$6\r\nstream\r\n"


def test_object_refuses_unknown_subcommands(pair: Pair) -> None:
    assert pair.ask("OBJECT", "What", "a") == b"-ERR unknown subcommand 'What'. Try OBJECT HELP.\r\n"


def test_object_help_is_lines(client: RawClient) -> None:
    lines = client.tree("OBJECT", "HELP")
    assert lines.kind == "*"
    assert {line.kind for line in lines.children or ()} == {"+"}
