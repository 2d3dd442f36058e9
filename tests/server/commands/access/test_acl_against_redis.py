"""ACL beside Redis: rules and their errors, what ACL LIST and GETUSER make of them, and what users may do then.

Where newer Redis differs from 7.0: rules about commands are shown as they were given, not as the shortest ones with the
same effect; entries of ACL LOG have a number and times.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from riverbed.server.commands.access.selector import CATEGORIES
from tests.conftest import StartRedis, StartRiverbed
from tests.support.pair import Pair
from tests.support.raw import Node, RawClient

PASSWORD_HASH = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"

RULES = [
    *("on", "off", "nopass", "resetpass", "reset", "sanitize-payload", "skip-sanitize-payload", "clearselectors"),
    *(">secret", "<secret", ">other", f"#{PASSWORD_HASH}", f"!{PASSWORD_HASH}", "#12", "!12", "<unknown"),
    *("~a*", "~b:*", "~a*", "%R~r*", "%W~r*", "%RW~w*", "%wr~x", "%R~", "%~x", "%X~x", "%RR~x", "~", "~a b", "%R"),
    *("~*", "allkeys", "resetkeys", "&news", "&n*", "&", "&*", "allchannels", "resetchannels", "& x"),
    *("+@all", "-@all", "allcommands", "nocommands", "+@stream", "-@stream", "+@read", "-@write", "+@fast", "-@slow"),
    *("+@dangerous", "-@admin", "+@connection", "+@pubsub", "-@blocking", "+@none", "-@none", "+@", "+@sortedset"),
    *("+xadd", "-xadd", "+XADD", "+xread", "+xreadgroup", "-xreadgroup", "+nocommand", "-nocommand", "+", "-"),
    *("+xgroup", "-xgroup", "+xgroup|create", "-xgroup|create", "+xgroup|nothing", "-xgroup|nothing", "+xgroup|"),
    *("+config|get", "-config|set", "+xinfo|stream", "+client|list|x"),
    *("+select|0", "+select|1", "-select|0", "+select|"),
    *("+xlen", "-xlen", "+rename", "+copy", "+subscribe", "+psubscribe", "+publish", "+multi", "-exec", "+ping"),
    *("(~s* +xadd)", "(%R~r* +xrange)", "(+@all)", "()"),
    *("(~x", ")", "(foo)", "(&c* +subscribe)", "(~s* %W~t -@all +xlen)"),
    *("word", "", "on ", "ON", "AllKeys", "(%R~q* -@all +copy)", "(%W~w* +copy +rename)"),
]  # fmt: skip

REQUESTS = [
    *("XADD a1 * f v", "XADD r1 * f v", "XADD s1 NOMKSTREAM * f v"),
    *("XLEN a1", "XLEN s1", "XRANGE r1 - +", "XDEL a1 1-1"),
    *("XREAD COUNT 1 STREAMS a1 r1 0 0", "XREAD STREAMS a1", "XREAD BLOCK 1 STREAMS b:1 $", "XREAD NOTHING a b"),
    *("XREADGROUP GROUP g c STREAMS a1 >", "XREADGROUP GROUP g c COUNT 1 STREAMS r1 x >  >", "XGROUP CREATE a1 g $"),
    *("XGROUP DESTROY r1 g", "XGROUP CREATECONSUMER x g c", "XINFO STREAM a1", "XINFO GROUPS r1", "XINFO HELP"),
    *("XACK a1 g 1-1", "XCLAIM r1 g c 0 1-1", "XAUTOCLAIM w1 g c 0 0", "XPENDING x g", "XTRIM a1 MAXLEN 1"),
    *("XSETID a1 1-1", "COPY a1 w1", "COPY r1 w1", "COPY q1 w2", "RENAME a1 w1", "RENAME r1 w1", "RENAMENX w1 a1"),
    *("DEL a1 r1 x", "UNLINK s1", "EXISTS a1 r1", "TYPE q1", "TOUCH a1", "EXPIRE a1 1", "PERSIST r1", "TTL a1"),
    *("MOVE a1 1", "KEYS *", "SCAN 0", "RANDOMKEY"),
    *("DBSIZE", "FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "OBJECT ENCODING a1"),
    *("SELECT 0", "SELECT 1", "PING", "ECHO x", "HELLO", "AUTH x", "QUIT", "RESET", "MULTI", "EXEC", "WATCH a1 r1"),
    *("SUBSCRIBE news n1", "SUBSCRIBE c1", "PSUBSCRIBE n*", "PSUBSCRIBE news", "PUBLISH news m", "SPUBLISH c1 m"),
    *("SSUBSCRIBE n1", "UNSUBSCRIBE x", "PUBSUB CHANNELS"),
    *("CONFIG GET x", "CONFIG SET x y", "CLIENT LIST", "CLIENT ID"),
    *("ACL WHOAMI", "ACL LIST", "INFO", "COMMAND COUNT"),
    *("SHUTDOWN", "DEBUG SLEEP 0", "MONITOR", "WAIT 0 0", "REPLICAOF a b"),
    *("MEMORY USAGE a1", "SLOWLOG GET", "LATENCY LATEST", "BGREWRITEAOF"),
    *("SAVE", "LASTSAVE", "TIME", "ROLE", "PSYNC ? -1"),
    *("NOCOMMAND a", "XLEN", "XLEN a b", "XGROUP NOTHING a"),
    # requests that cannot run: keys are looked for all the same
    *("XREAD COUNT STREAMS 1 x", "XREAD COUNT STREAMS a1", "XREAD BLOCK streams STREAMS x 0", "XREAD COUNT 1 STREAMS"),
    *("XREAD GROUP STREAMS c STREAMS a1 0", "XREAD NOTHING STREAMS x 0", "XREAD STREAMS a1 x 0", "XREAD STREAMS x x x"),
    *("XREADGROUP GROUP g c COUNT STREAMS x >", "XREADGROUP GROUP g c NOACK COUNT STREAMS x > 0"),
    *("XREADGROUP COUNT 1 STREAMS a1 x 0 0", "XREADGROUP STREAMS x GROUP g c 0", "XREADGROUP g c STREAMS x > r1"),
    *("XREADGROUP GROUP g c COUNT 1 STREAMS", "XREADGROUP GROUP STREAMS x a1 0 0", "XREADGROUP g c NOACK STREAMS x >"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_users(pair: Pair) -> None:
    for client in (pair.ours, pair.theirs):
        for name in client.tree("ACL", "USERS").children or ():
            if name.text != b"default":
                client.ask("ACL", "DELUSER", name.text)
        client.ask("ACL", "LOG", "RESET")


def seed() -> int:
    named = os.environ.get("RIVERBED_SEED", "1")
    return random.SystemRandom().getrandbits(32) if named == "random" else int(named)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_means_the_same_for_a_new_user(pair: Pair, rule: str) -> None:
    pair.ask("ACL", "SETUSER", "u", rule)
    assert users(pair.ours) == users(pair.theirs)
    assert described(pair.ours, "u") == described(pair.theirs, "u")


@pytest.mark.parametrize("rule", ["~*", "%W~*", "%R~*", "%RW~*", "~**", "~?*", "~"])
def test_a_star_that_does_not_ask_for_all_keys_matches_no_empty_key(pair: Pair, rule: str) -> None:
    pair.ask("ACL", "SETUSER", "u", "reset", rule, "+@all")
    for words in (("XADD", "", "*", "f", "v"), ("XLEN", ""), ("XRANGE", "k", "-", "+"), ("DEL", "k", "")):
        assert pair.ours.ask("ACL", "DRYRUN", "u", *words) == pair.theirs.ask("ACL", "DRYRUN", "u", *words), words


def users(client: RawClient) -> list[bytes]:
    """ACL LIST without the rules about commands."""
    lines = [one.text for one in client.tree("ACL", "LIST").children or ()]
    return [b" ".join(re.sub(rb"(?<=[ (])[+-][^ )]+", b"", line).split()) for line in lines]


def described(client: RawClient, name: str) -> Node:
    """ACL GETUSER without the rules about commands."""
    return client.tree("ACL", "GETUSER", name).map_leaves(
        lambda leaf: leaf if leaf.text[:2] not in (b"+@", b"-@") else Node(leaf.kind, leaf.text[:5])
    )


def test_random_rules_make_the_same_users_that_may_do_the_same(pair: Pair) -> None:
    number = seed()
    rng = random.Random(number)
    for round_ in range(150):
        rules = rng.choices(RULES, k=rng.randint(1, 9))
        place = f"seed {number}, round {round_}: {rules}"
        if rng.random() < 0.3:
            pair.ask("ACL", "DELUSER", "u")
        if rng.random() < 0.5:  # rules that are wrong keep all others from being applied
            rules = [rule for rule in rules if accepts(pair.theirs, rule)]
        words: tuple[str, ...] = ("ACL", "SETUSER", "u", *rules)
        assert pair.ours.ask(*words) == pair.theirs.ask(*words), place
        assert users(pair.ours) == users(pair.theirs), place
        assert described(pair.ours, "u") == described(pair.theirs, "u"), place
        if rng.random() < 0.3:  # the line that we show makes the same user
            lines = [one.text for one in pair.ours.tree("ACL", "LIST").children or () if b"user u " in one.text]
            pair.theirs.ask("ACL", "DELUSER", "u")
            for line in lines:
                assert pair.theirs.ask("ACL", "SETUSER", *line.split(b" ")[1:]) == b"+OK\r\n", (place, line)
        for line in rng.sample(REQUESTS, 25):
            words = ("ACL", "DRYRUN", "u", *line.split())
            assert pair.ours.ask(*words) == pair.theirs.ask(*words), (place, line)


def accepts(client: RawClient, rule: str) -> bool:
    client.ask("ACL", "SETUSER", "trial", "reset", "nopass")
    found = client.ask("ACL", "SETUSER", "trial", rule) == b"+OK\r\n"
    client.ask("ACL", "DELUSER", "trial")
    return found


@pytest.mark.parametrize("line", REQUESTS)
def test_a_user_of_streams_may_do_the_same(pair: Pair, line: str) -> None:
    pair.ask("ACL", "SETUSER", "u", "on", "nopass", "~a*", "%R~r*", "%W~w*", "&n*", "+@stream", "+copy", "+@pubsub")
    pair.ask("ACL", "SETUSER", "u", "(~x* +@keyspace)", "(%R~q* +copy)", "+select|0", "+config|get")
    pair.ask("ACL", "DRYRUN", "u", *line.split())


@pytest.mark.parametrize("category", [*CATEGORIES, "STREAM", "none"])
def test_categories_have_the_same_commands_among_those_of_both(pair: Pair, category: str) -> None:
    names = [{one.text for one in client.tree("COMMAND", "LIST").children or ()} for client in (pair.ours, pair.theirs)]
    common = names[0] & names[1]
    found = []
    for client in (pair.ours, pair.theirs):
        reply = client.tree("ACL", "CAT", category)
        found.append(reply if reply.children is None else {one.text for one in reply.children} & common)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "line",
    [
        *("ACL CAT", "ACL CAT a b", "ACL USERS", "ACL LIST", "ACL WHOAMI", "ACL WHOAMI x", "ACL LIST x", "ACL USERS x"),
        *("ACL GETUSER", "ACL GETUSER nobody", "ACL GETUSER default", "ACL SETUSER", "ACL DELUSER", "ACL DELUSER a b"),
        *(
            "ACL DELUSER default",
            "ACL GENPASS 0",
            "ACL GENPASS -1",
            "ACL GENPASS 4097",
            "ACL GENPASS x",
            "ACL GENPASS 1 2",
        ),
        *(
            "ACL LOG x",
            "ACL LOG RESET",
            "ACL LOG reset",
            "ACL LOG -1",
            "ACL LOG 0",
            "ACL LOG 1 2",
            "ACL LOAD",
            "ACL SAVE",
        ),
        *("ACL LOAD x", "ACL SAVE x", "ACL", "ACL NOTHING", "ACL DRYRUN", "ACL DRYRUN u", "ACL DRYRUN nobody XLEN a"),
        *("ACL DRYRUN default NOTHING", "ACL DRYRUN default XLEN", "ACL DRYRUN default XGROUP NOTHING a", "ACL HELP x"),
        *(
            "CONFIG GET acllog-max-len",
            "CONFIG GET aclfile",
            "CONFIG GET acl-pubsub-default",
            "AUTH x",
            "AUTH default x",
            "AUTH nobody x",
            "AUTH a b c",
            "HELLO 2 AUTH nobody x",
        ),
    ],
)
def test_subcommands_answer_the_same(pair: Pair, line: str) -> None:
    pair.say(line)


@pytest.mark.parametrize("name", [b"", b"a b", b"a\0b", b"a\tb", b"\xff\xfe", b"(", b"x" * 300])
def test_names_are_refused_alike(pair: Pair, name: bytes) -> None:
    if name:
        pair.ask("ACL", "SETUSER", name, "on")
        pair.ask("ACL", "USERS")


def test_help_is_that_of_redis(pair: Pair) -> None:
    ours, theirs = (client.ask("ACL", "HELP") for client in (pair.ours, pair.theirs))
    assert ours == theirs.replace(b"    Prints this help.", b"    Print this help.")


@pytest.mark.parametrize("resp", [2, 3])
def test_getuser_has_the_same_shape_in_both_protocols(pair: Pair, resp: int) -> None:
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", resp)
    pair.ask("ACL", "SETUSER", "u", "on", ">p", "~a", "&c", "+@stream", "(~b +xlen)")
    pair.ask("ACL", "GETUSER", "u")
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 2)


def test_what_is_refused_to_a_client_is_told_and_kept_alike(pair: Pair) -> None:
    pair.ask("ACL", "SETUSER", "u", "on", ">p", "~a*", "+xadd", "+xread", "+multi", "+exec", "+subscribe", "+rename")
    pair.ask("AUTH", "u", "p")
    try:
        lines = [
            *("XADD b 1-1 f v", "XADD a 1-1 f v", "XLEN a", "xlen a", "CONFIG GET x", "RENAME a b", "SUBSCRIBE c"),
            *("MULTI", "XLEN a", "XADD b * f v", "EXEC", "XREAD STREAMS a b 0 0", "XADD b 1-1 f v", "PUBLISH c m"),
            *("MULTI", "XADD a 2-2 f v", "EXEC", "NOCOMMAND", "XADD", "XREAD a", "XGROUP NOTHING", "AUTH u wrong"),
        ]
        for line in lines:
            pair.say(line)
    finally:
        for client in (pair.ours, pair.theirs):
            client.ask("AUTH", "default", "any")
    assert entries(pair.ours) == entries(pair.theirs)
    pair.ask("ACL", "LOG", "RESET")
    pair.ask("ACL", "LOG")


def entries(client: RawClient) -> list[dict[bytes, bytes | str]]:
    """ACL LOG without times, addresses, and what only newer Redis has."""
    newer = {b"entry-id", b"timestamp-created", b"timestamp-last-updated", b"age-seconds"}
    found = []
    for node in client.tree("ACL", "LOG", 100).children or ():
        entry = {name.text: value.text for name, value in node.pairs() if name.text not in newer}
        line = entry[b"client-info"].decode()
        shown = dict(re.findall(r"(\S+)=(\S*)", line))
        entry[b"client-info"] = " ".join(f"{name}={shown[name]}" for name in ("flags", "multi", "cmd", "user", "resp"))
        found.append(entry)
    return found


def test_rules_that_change_before_exec_refuse_its_commands(pair: Pair) -> None:
    pair.ask("ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all", "-@dangerous", "+acl")
    pair.ask("AUTH", "u", "x")
    try:
        for rule in ("-xlen", "resetkeys", "resetchannels"):
            for line in ("MULTI", "XLEN a", "PUBLISH c m", "PING"):
                pair.say(line)
            # as another client would, between MULTI and EXEC
            with_ours, with_theirs = another(pair.ours), another(pair.theirs)
            for client in (with_ours, with_theirs):
                assert client.ask("ACL", "SETUSER", "u", rule) == b"+OK\r\n"
                client.close()
            pair.say("EXEC")
    finally:
        for client in (pair.ours, pair.theirs):
            client.ask("AUTH", "default", "any")


def another(client: RawClient) -> RawClient:
    return RawClient(client.socket.getpeername()[1])


FILES = [
    *("user a on +nocommand", "user a on -nocommand|x", "user a +@nocat", "user a +get|x|y", "user", "foo"),
    "foo bar on",
    *("user a (+xadd foo)", "user a on\nuser a off", "user a on\nuser b\nuser a on\nuser b off\nuser zz y"),
    "user a #zz",
    *("user a >pw <nothere", "user a !00", "user a %X~a", "user a &* &b", "user a ~* ~b", 'user a "zz y"', "user a a)"),
    *("user a on\nfoo\n\nuser b +@nocat\nuser c zz", "user a zz\r\nuser b yy\r\n", "user default bad", "user a ~x %~z"),
    *("user a on +xadd", "user a ~a ~*", "  user a on", "user a ()"),
]  # fmt: skip


def test_an_aclfile_is_loaded_or_refused_in_the_words_of_redis(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    """Not here: `USER` and lines that begin with `#`, which we take; an open parenthesis, which ends Redis 7.0."""
    file = tmp_path / "users.acl"
    file.write_text("user default on nopass ~* &* +@all\n")
    with (
        start_riverbed(options={"aclfile": file}).client() as ours,
        start_redis(options={"aclfile": file}).client() as theirs,
    ):
        pair = Pair(ours, theirs)
        refused = 0
        for text in FILES:
            file.write_text(f"{text}\n")
            reply = pair.ask("ACL", "LOAD")
            refused += reply.endswith(b"no change to the previously active ACL rules was performed\r\n")
            assert (reply == b"+OK\r\n") == (text in FILES[-4:])
            pair.ask("ACL", "LIST")
        assert refused == len(FILES) - 4


@pytest.mark.parametrize("rules", ["(+get (+xadd", "( ~a (+xadd ~x", "(+get (+xadd x) (zz", "(~a", "+get ( ) ( ("])
def test_the_last_selector_that_does_not_end_is_named(pair: Pair, rules: str) -> None:
    assert pair.say(f"ACL SETUSER u {rules}").startswith(b"-ERR Unmatched parenthesis")
