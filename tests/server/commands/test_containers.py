"""What the commands for operators that have subcommands have in common: word counts, unknown subcommands, HELP."""

from __future__ import annotations

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient

HELP = ("MEMORY HELP", "SLOWLOG HELP", "LATENCY HELP", "DEBUG HELP")


@pytest.mark.parametrize(
    "line",
    [
        *("DEBUG", "SLOWLOG", "LATENCY", "MEMORY"),
        *("SLOWLOG LEN x", "SLOWLOG RESET x", "SLOWLOG HELP x", "LATENCY LATEST x", "LATENCY HISTORY"),
        *("LATENCY HISTORY a b", "LATENCY DOCTOR x", "LATENCY HELP x", "MEMORY USAGE", "MEMORY DOCTOR x"),
        *("MEMORY PURGE x", "MEMORY STATS x", "MEMORY MALLOC-STATS x", "MEMORY HELP x"),
    ],
)
def test_word_counts_are_checked_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line).startswith(b"-ERR wrong number of arguments for '")


@pytest.mark.parametrize("name", ["SLOWLOG", "LATENCY", "MEMORY"])
def test_unknown_subcommands_are_told_as_typed(pair: Pair, name: str) -> None:
    assert pair.ask(name, "What") == f"-ERR unknown subcommand 'What'. Try {name} HELP.\r\n".encode()


@pytest.mark.parametrize("line", HELP)
def test_help_is_lines(client: RawClient, line: str) -> None:
    lines = client.tree(*line.split())
    assert {child.kind for child in lines.children or ()} == {"+"}
    assert (lines.children or ())[-1].text == b"    Print this help."


def test_help_shows_each_subcommand_by_its_syntax_and_summary(client: RawClient) -> None:
    lines = [child.text for child in client.tree("SLOWLOG", "HELP").children or ()]
    assert lines == [
        b"SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        *(b"GET [count]", b"    Lists the latest slow commands."),
        *(b"LEN", b"    Counts the slow commands that are kept."),
        *(b"RESET", b"    Forgets the slow commands."),
        *(b"HELP", b"    Print this help."),
    ]
