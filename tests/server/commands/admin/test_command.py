"""COMMAND, and the table behind it beside the real one.

`FLAGS_LEFT_OUT`, `DIFFERS` and `NEWER_THAN_THE_ORACLE` name every difference from redis-server 7.0.15; an entry that is
not true any more fails a test, too.
"""

from __future__ import annotations

from typing import Any

import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.syntax import format_syntax, parse_syntax
from riverbed.server.commands.table import COMMANDS, Command, Flag
from tests.support.pair import Pair
from tests.support.raw import Node, RawClient

load_commands()


def visible_commands() -> list[Command]:
    """What clients may call, subcommands included."""
    rows = [row for row in COMMANDS.values() if Flag.LOG_ONLY not in row.flags]
    return rows + [subcommand for row in rows for subcommand in row.subcommands.values()]


NAMES = [row.full_name.decode() for row in visible_commands()]

# -- shapes ------------------------------------------------------------------------------------------------------------


def test_command_without_a_subcommand_describes_every_command(client: RawClient) -> None:
    described = client.tree("COMMAND").children or ()
    assert len(described) == int(client.tree("COMMAND", "COUNT").text)
    assert all(len(row.children or ()) == 10 for row in described)
    assert client.ask("COMMAND") == client.ask("COMMAND", "INFO")


def test_command_info_describes_commands_and_subcommands_in_the_order_asked(client: RawClient) -> None:
    xlen, missing, stream = client.tree("COMMAND", "INFO", "XLEN", "nope", "xinfo|STREAM").children or ()
    assert (xlen.children or ())[0].text == b"xlen"
    assert missing.kind == "nil$"
    assert (stream.children or ())[0].text == b"xinfo|stream"


def test_command_info_of_an_unknown_command_is_null(pair: Pair) -> None:
    assert pair.ask("COMMAND", "INFO", "nope", "xinfo|nope", "nope|stream") == b"*3\r\n" + b"$-1\r\n" * 3


def test_command_info_in_resp3_has_sets_of_flags_and_maps_of_keys(client: RawClient) -> None:
    client.ask("HELLO", 3)
    (row,) = client.tree("COMMAND", "INFO", "del").children or ()
    elements = row.children or ()
    assert [element.kind for element in elements[:8]] == ["$", ":", "~", ":", ":", ":", "~", "~"]
    (spec,) = elements[8].children or ()
    assert spec.kind == "%"


def test_command_list_filters(client: RawClient) -> None:
    def listed(*words: str) -> set[str]:
        return {name.text.decode() for name in client.tree("COMMAND", "LIST", *words).children or ()}

    assert listed() == set(NAMES)
    assert listed("FILTERBY", "PATTERN", "XINFO*") == {name for name in NAMES if name.startswith("xinfo")}
    assert "xread" in listed("filterby", "aclcat", "Blocking")
    assert "xlen" not in listed("FILTERBY", "ACLCAT", "blocking")
    assert listed("FILTERBY", "ACLCAT", "@stream") == set()
    assert listed("FILTERBY", "MODULE", "any") == set()


@pytest.mark.parametrize("line", ["X", "FILTERBY", "FILTERBY PATTERN", "FILTERBY X x", "FILTERBY PATTERN x x"])
def test_command_list_refuses_other_words(pair: Pair, line: str) -> None:
    assert pair.say(f"COMMAND LIST {line}") == b"-ERR syntax error\r\n"


@pytest.mark.parametrize("line", ["COUNT x", "HELP x", "GETKEYS get", "GETKEYSANDFLAGS get", "GETKEYS"])
def test_subcommands_check_their_word_counts(pair: Pair, line: str) -> None:
    name = line.partition(" ")[0].lower()
    expected = f"-ERR wrong number of arguments for 'command|{name}' command\r\n".encode()
    assert pair.say(f"COMMAND {line}") == expected


def test_an_unknown_subcommand_is_told_as_typed(pair: Pair) -> None:
    assert pair.ask("COMMAND", "What") == b"-ERR unknown subcommand 'What'. Try COMMAND HELP.\r\n"


def test_an_unknown_subcommand_is_refused_before_it_is_queued(pair: Pair) -> None:
    pair.ask("MULTI")
    assert pair.ask("COMMAND", "What") == b"-ERR unknown subcommand 'What'. Try COMMAND HELP.\r\n"
    assert pair.ask("EXEC") == b"-EXECABORT Transaction discarded because of previous errors.\r\n"


def test_help_is_lines(client: RawClient) -> None:
    assert {line.kind for line in client.tree("COMMAND", "HELP").children or ()} == {"+"}


@pytest.mark.parametrize("name", ["xlen", "ping", "xread", "rename", "xgroup", "xgroup|create"])
def test_descriptions_are_of_the_types_that_redis_sends_to_resp3_clients(pair: Pair, name: str) -> None:
    def kinds(node: Node) -> object:
        """The types of a description; those of what a set has in any order."""
        inner = [kinds(child) for child in node.children or ()]
        return node.kind, sorted(map(str, inner)) if node.kind == "~" else inner

    described = []
    for server in (pair.ours, pair.theirs):
        server.ask("HELLO", 3)
        (row,) = server.tree("COMMAND", "INFO", name).children or ()
        server.ask("HELLO", 2)
        assert row.children is not None
        *about, subcommands = row.children
        described.append(([kinds(each) for each in about], subcommands.kind))
    assert described[0] == described[1]


# -- COMMAND DOCS ------------------------------------------------------------------------------------------------------


def as_dict(node: Node) -> dict[str, Node]:
    return {name.text.decode(): value for name, value in node.pairs()}


def test_docs_of_unknown_commands_are_left_out(pair: Pair) -> None:
    assert pair.ask("COMMAND", "DOCS", "nope") == b"*0\r\n"


def test_docs_cover_all_commands_and_their_subcommands(client: RawClient) -> None:
    docs = as_dict(client.tree("COMMAND", "DOCS"))
    assert set(docs) == {name for name in NAMES if "|" not in name}
    for name, node in docs.items():
        fields = as_dict(node)
        assert fields["summary"].text, name
        subcommands = as_dict(fields["subcommands"]) if "subcommands" in fields else {}
        assert set(subcommands) == {other for other in NAMES if other.startswith(f"{name}|")}


def test_docs_have_a_tree_of_arguments(client: RawClient) -> None:
    (_, docs) = client.tree("COMMAND", "DOCS", "expire").pairs()[0]
    key, seconds, condition = as_dict(docs)["arguments"].children or ()
    assert str(key) == "*[$'name' $'key' $'type' $'key' $'key_spec_index' :'0']"
    assert as_dict(seconds)["type"].text == b"integer"
    assert as_dict(condition)["type"].text == b"oneof"
    assert str(as_dict(condition)["flags"]) == "*[+'optional']"
    assert [as_dict(one)["token"].text for one in as_dict(condition)["arguments"].children or ()] == [
        *(b"NX", b"XX", b"GT", b"LT")
    ]


def test_docs_number_the_keys_of_a_command_with_two(client: RawClient) -> None:
    (_, docs) = client.tree("COMMAND", "DOCS", "rename").pairs()[0]
    indexes = [as_dict(argument)["key_spec_index"].text for argument in as_dict(docs)["arguments"].children or ()]
    assert indexes == [b"0", b"1"]


def test_docs_in_resp3_are_maps(client: RawClient) -> None:
    client.ask("HELLO", 3)
    docs = client.tree("COMMAND", "DOCS", "xinfo")
    assert docs.kind == "%"
    assert docs.pairs()[0][1].kind == "%"


@pytest.mark.parametrize("row", visible_commands(), ids=lambda row: row.full_name.decode())
def test_every_command_is_documented(row: Command) -> None:
    assert row.summary.endswith(".")
    assert row.summary[0].isupper()
    assert row.group in ("generic", "stream", "pubsub", "connection", "server", "transactions")
    assert row.since.count(".") == 2
    arguments = parse_syntax(row.syntax)
    assert parse_syntax(format_syntax(arguments)) == arguments


@pytest.mark.parametrize("row", visible_commands(), ids=lambda row: row.full_name.decode())
def test_word_counts_follow_from_the_syntax(row: Command) -> None:
    """The fewest words of the syntax are those of the arity, which is exact when nothing may be left out."""
    if row.subcommands or row.full_name in (b"debug", b"xgroup|setid", b"client|kill"):
        return

    def fewest(arguments: Any) -> int:
        total = 0
        for argument in arguments:
            if argument.optional:
                continue
            inner = [fewest((choice,)) for choice in argument.arguments] if argument.kind == "oneof" else None
            if argument.kind == "block":
                total += bool(argument.token) + fewest(argument.arguments)
            elif inner is not None:
                total += bool(argument.token) + min(inner)
            else:
                total += 1 + bool(argument.token and argument.kind != "pure-token")
        return total

    words = row.full_name.count(b"|") + 1 + fewest(parse_syntax(row.syntax))
    assert words >= abs(row.arity) or row.full_name in LOOSE_ARITY


# Redis checks fewer words than these need, and answers with another error.
LOOSE_ARITY = {b"command|getkeys", b"command|getkeysandflags"}


# -- COMMAND GETKEYS ---------------------------------------------------------------------------------------------------

KEY_LINES = [
    *("del a b c", "exists a", "type a", "rename a b", "copy a b DB 1", "move a 1", "expire a 10 NX", "ttl a"),
    *("object encoding a", "memory usage a", "memory usage a samples 3", "watch a b", "touch a b"),
    *("xadd a * f v", "xlen a", "xrange a - +", "xdel a 1 2", "xtrim a maxlen 3", "xinfo stream a full"),
    *("xread streams a 0", "xread count 2 block 5 streams a b 0 0", "xread streams streams 0"),
    *("xread count 2 streams a b 0", "XREAD COUNT 2 STREAMS a b 0 $", "persist a", "unlink a b"),
]


@pytest.mark.parametrize("line", KEY_LINES)
def test_keys_are_found_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(f"COMMAND GETKEYS {line}").startswith(b"*")
    assert pair.say(f"COMMAND GETKEYSANDFLAGS {line}").startswith(b"*")


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("nope x", b"Invalid command specified"),
        ("xinfo nope x", b"Invalid command specified"),
        ("xinfo|stream stream a", b"Invalid command specified"),
        ("object help", b"The command has no key arguments"),
        ("object help x", b"The command has no key arguments"),
        ("echo x", b"The command has no key arguments"),
        ("keys x", b"The command has no key arguments"),
        ("command getkeys get a", b"The command has no key arguments"),
        ("type a b", b"Invalid number of arguments specified for command"),
        ("xinfo stream", b"Invalid number of arguments specified for command"),
        ("xread streams a", b"Invalid number of arguments specified for command"),
        ("xread count 2 nothing a 0", b"Invalid arguments specified for command"),
    ],
)
def test_getkeys_refuses_in_the_words_of_redis(pair: Pair, line: str, reply: bytes) -> None:
    assert pair.say(f"COMMAND GETKEYS {line}") == b"-ERR %b\r\n" % reply
    assert pair.say(f"COMMAND GETKEYSANDFLAGS {line}") == b"-ERR %b\r\n" % reply


# -- the table beside the real one -------------------------------------------------------------------------------------

# Flags of Redis that mean nothing here: there is no asynchronous loading and no script that keeps the server busy.
FLAGS_LEFT_OUT = {"no_async_loading", "allow_busy"}

ELEMENTS = ("name", "arity", "flags", "first", "last", "step", "categories", "tips", "specs", "subcommands")
# Command -> element -> why it is not what the oracle says.
DIFFERS: dict[str, dict[str, str]] = {
    "client|list": {"tips": "newer releases say that all nodes must be asked"},
    "config|resetstat": {"tips": "newer releases say that all nodes must be asked"},
}
# Commands of Redis 7.2 to 8.8, and our own.
NEWER_THAN_THE_ORACLE = {
    "xgroup|policy",
    "xgroup|seen",
    *("riverbed", "riverbed|help", "riverbed|lag", "riverbed|repair", "riverbed|snapshot", "riverbed|snapshots"),
    *("client|no-touch", "client|setinfo", "waitaof"),
    *("xackdel", "xcfgset", "xdelex", "xidmprecord", "xnack"),
}


def plain(node: Node) -> Any:
    """A reply as lists and text."""
    if node.children is None:
        return int(node.text) if node.kind == ":" else node.text.decode()
    return [plain(child) for child in node.children]


def described(client: RawClient, name: str) -> dict[str, Any] | None:
    (row,) = client.tree("COMMAND", "INFO", name).children or ()
    if row.children is None:
        return None
    found = dict(zip(ELEMENTS, plain(row), strict=True))
    found["flags"] = [flag for flag in found["flags"] if flag not in FLAGS_LEFT_OUT]
    found["subcommands"] = None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_table_says_what_redis_says(pair: Pair, name: str) -> None:
    theirs = described(pair.theirs, name)
    if theirs is None:
        assert name in NEWER_THAN_THE_ORACLE
        return
    ours = described(pair.ours, name)
    assert ours is not None
    differing = {element for element in ELEMENTS if ours[element] != theirs[element]}
    assert differing == set(DIFFERS.get(name, ())), (ours, theirs)


def test_what_is_newer_than_the_oracle_is_not_known_to_it(pair: Pair) -> None:
    for name in NEWER_THAN_THE_ORACLE & set(NAMES):
        assert described(pair.theirs, name) is None
