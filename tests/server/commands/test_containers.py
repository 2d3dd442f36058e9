"""What the commands for operators that have subcommands have in common: word counts, unknown subcommands, HELP."""

from __future__ import annotations

import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.table import COMMANDS
from tests.support.pair import Pair
from tests.support.raw import RawClient

# Subcommands of which ours and Redis's help say different things, for they do different things, or Redis 7.0 has none.
OUR_OWN = {
    "CLIENT": {"CACHING", "GETREDIR", "KILL", "LIST", "NO-TOUCH", "SETINFO", "TRACKING"},
    "COMMAND": set(),
    "CONFIG": set(),
    "LATENCY": set(),
    "MEMORY": {"USAGE"},
    "OBJECT": {"FREQ"},
    "PUBSUB": set(),
    "SLOWLOG": set(),
    "XGROUP": {"POLICY", "SEEN"},
    "XINFO": set(),
}
NOT_OURS = {"LATENCY": {"GRAPH"}}


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


def help_of(client: RawClient, name: str) -> dict[str, list[str]]:
    """What HELP says of each subcommand; its first line is by the empty name."""
    reply = client.tree(name, "HELP")
    assert {line.kind for line in reply.children or ()} == {"+"}
    head, *lines = (line.text.decode() for line in reply.children or ())
    found = {"": [head]}
    subcommand = ""
    for line in lines:
        if line.startswith("    "):
            assert subcommand
        else:
            subcommand = line.split()[0]
            assert subcommand
        found.setdefault(subcommand, []).append(line)
    return found


@pytest.mark.parametrize("name", OUR_OWN)
def test_help_is_that_of_redis_where_we_do_the_same(pair: Pair, name: str) -> None:
    ours, theirs = (help_of(client, name) for client in (pair.ours, pair.theirs))
    assert ours.pop("HELP") == ["HELP", "    Print this help."]
    assert theirs.pop("HELP") == ["HELP", "    Prints this help."]
    assert theirs.keys() - ours.keys() == NOT_OURS.get(name, set())
    differ = {
        word
        for word, lines in ours.items()
        if theirs.get(word) != [line.replace("Riverbed", "Redis") for line in lines]
    }
    assert differ == OUR_OWN[name]


@pytest.mark.parametrize("name", [*OUR_OWN, "ACL", "DEBUG", "RIVERBED"])
def test_help_says_something_of_every_subcommand(client: RawClient, name: str) -> None:
    load_commands()
    found = help_of(client, name)
    assert found.pop("") == [f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
    assert list(found)[-1] == "HELP"
    assert found.pop("HELP") == ["HELP", "    Print this help."]
    declared = {word.decode() for word in COMMANDS[name.encode()].subcommands}
    if declared:  # those of DEBUG are not in the table
        assert found.keys() - {"(no"} == declared - {"HELP"}
    assert [word for word, lines in found.items() if not lines[1:]] == []
