"""Pub/Sub beside redis-server: what subscribers are sent, to the byte and in the same order.

Where Redis lists names in the order of a hash table, the replies are compared as sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.client_lines import lines, own_line
from tests.support.pair import Pair
from tests.support.raw import RawClient, encode, parse
from tests.support.servers import RedisServer, RiverbedServer
from tests.support.waiting import until, until_blocked

# No subscriptions: answered with the same bytes by redis-server 7.0, in RESP2 and RESP3.
SAME = [
    "SUBSCRIBE",
    "PSUBSCRIBE",
    "SSUBSCRIBE",
    "UNSUBSCRIBE",
    "UNSUBSCRIBE a",
    "PUNSUBSCRIBE",
    "PUNSUBSCRIBE a",
    "SUNSUBSCRIBE",
    "SUNSUBSCRIBE a",
    "PUBLISH",
    "PUBLISH a",
    "PUBLISH a b",
    "PUBLISH a b c",
    "SPUBLISH a",
    "SPUBLISH a b",
    "PUBSUB",
    "PUBSUB NONSENSE",
    "PUBSUB NONSENSE a b",
    "PUBSUB CHANNELS",
    "PUBSUB CHANNELS a*",
    "PUBSUB CHANNELS a b",
    "pubsub channels a b",
    "PUBSUB SHARDCHANNELS",
    "PUBSUB SHARDCHANNELS a b",
    "PUBSUB NUMSUB",
    "PUBSUB NUMSUB a b a",
    "PUBSUB SHARDNUMSUB",
    "PUBSUB SHARDNUMSUB a",
    "PUBSUB NUMPAT",
    "PUBSUB NUMPAT a",
    "PUBSUB HELP a",
    "COMMAND GETKEYS PUBLISH a b",
    "COMMAND GETKEYS SPUBLISH a b",
    "COMMAND GETKEYS SSUBSCRIBE a b",
]


class Cast:
    """Clients by name, each a connection to both servers."""

    def __init__(self, servers: tuple[RiverbedServer, RedisServer]) -> None:
        self._servers = servers
        self._pairs: dict[str, Pair] = {}

    def __getitem__(self, name: str) -> Pair:
        if name not in self._pairs:
            ours, theirs = self._servers
            self._pairs[name] = Pair(ours.client(), theirs.client())
        return self._pairs[name]

    def close(self) -> None:
        for pair in self._pairs.values():
            pair.ours.close()
            pair.theirs.close()

    def send(self, name: str, *commands: str) -> None:
        """Have these commands arrive in one piece, without waiting for replies."""
        data = b"".join(encode(line.split()) for line in commands)
        self[name].ours.send_bytes(data)
        self[name].theirs.send_bytes(data)

    def hear(self, name: str, count: int = 1) -> list[bytes]:
        """The next `count` things the client is sent, the same by both."""
        pair = self[name]
        ours = [pair.ours.reply() for _ in range(count)]
        assert ours == [pair.theirs.reply() for _ in range(count)]
        return ours

    def hears_nothing(self, name: str) -> None:
        """Whatever had been sent before would stand before this reply."""
        self.send(name, "PING end-of-what-was-sent")
        (reply,) = self.hear(name)
        assert b"end-of-what-was-sent" in reply


@pytest.fixture
def cast(server: RiverbedServer, oracle: RedisServer) -> Iterator[Cast]:
    for subject in (server, oracle):
        with subject.client() as client:
            assert client.ask("FLUSHALL") == b"+OK\r\n"
    cast = Cast((server, oracle))
    yield cast
    cast.close()
    # the next test begins without subscriptions
    for subject in (server, oracle):
        with subject.client() as client:
            until(lambda: client.ask("CLIENT", "LIST", "TYPE", "pubsub") == b"$0\r\n\r\n", "no subscriber")


def bulks(*words: str | int) -> bytes:
    """An array of words and numbers in RESP2."""
    items = [
        b":%d\r\n" % word if isinstance(word, int) else b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words
    ]
    return b"*%d\r\n%b" % (len(words), b"".join(items))


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("line", SAME)
def test_answers_are_those_of_redis(pair: Pair, line: str, resp: int) -> None:
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", resp)
    pair.say(line)
    pair.say("PING")


def test_help_names_every_subcommand(client: RawClient) -> None:
    text = client.ask("PUBSUB", "HELP")
    for name in (b"CHANNELS", b"NUMPAT", b"NUMSUB", b"SHARDCHANNELS", b"SHARDNUMSUB", b"HELP"):
        assert b"+" + name in text


# -- subscribing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resp", [2, 3])
def test_every_name_is_confirmed_with_the_count_so_far(cast: Cast, resp: int) -> None:
    cast.send("a", f"HELLO {resp}", "SUBSCRIBE x y x", "PSUBSCRIBE x* x* y", "SSUBSCRIBE x s", "SUBSCRIBE z")
    cast["a"].ours.reply()
    cast["a"].theirs.reply()  # the greeting tells versions
    heard = cast.hear("a", 3 + 3 + 2 + 1)
    assert [parse(frame).children[2].text for frame in heard] == [b"1", b"2", b"2", b"3", b"3", b"4", b"1", b"2", b"5"]
    cast.send("a", "UNSUBSCRIBE x nothing z", "SUNSUBSCRIBE s", "PUNSUBSCRIBE y nothing")
    assert len(cast.hear("a", 3 + 1 + 2)) == 6
    cast.send("a", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE")
    heard = cast.hear("a", 6)
    null = b"$-1\r\n" if resp == 2 else b"_\r\n"
    assert null in heard[3]
    cast.hears_nothing("a")


def test_unsubscribing_from_everything_confirms_every_name(cast: Cast) -> None:
    names = [f"channel-{number}" for number in range(20)]
    for kind, word in (("", "channels"), ("P", "patterns"), ("S", "shard channels")):
        cast.send(word, f"{kind}SUBSCRIBE {' '.join(names)}", f"{kind}UNSUBSCRIBE")
        cast.hear(word, 20)
        ours = [parse(cast[word].ours.reply()).children for _ in names]
        theirs = [parse(cast[word].theirs.reply()).children for _ in names]
        assert [frame[2] for frame in ours] == [frame[2] for frame in theirs]
        assert {frame[1] for frame in ours} == {frame[1] for frame in theirs}
        cast.hears_nothing(word)


def test_confirmations_in_a_transaction_are_part_of_its_reply(cast: Cast) -> None:
    for resp in (2, 3):
        name = f"client {resp}"
        cast[name].ours.ask("HELLO", resp)
        cast[name].theirs.ask("HELLO", resp)
        cast.send(name, "MULTI", "SUBSCRIBE x", "PING", "PING text", "PSUBSCRIBE y", "UNSUBSCRIBE", "EXEC")
        cast.hear(name, 7)
        cast.send(name, "PUNSUBSCRIBE", "PING")
        cast.hear(name, 2)


def test_confirmations_come_to_who_wants_no_replies(cast: Cast) -> None:
    cast.send("off", "CLIENT REPLY OFF", "SUBSCRIBE x", "PING", "UNSUBSCRIBE x nothing", "CLIENT REPLY ON")
    assert cast.hear("off", 4)[-1] == b"+OK\r\n"
    cast.send("skip", "CLIENT REPLY SKIP", "SUBSCRIBE x", "PING")
    assert cast.hear("skip", 2) == [bulks("subscribe", "x", 1), bulks("pong", "")]


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resp", [2, 3])
def test_messages_reach_who_listens(cast: Cast, resp: int) -> None:
    cast["a"].ours.ask("HELLO", resp)
    cast["a"].theirs.ask("HELLO", resp)
    cast.send("a", "SUBSCRIBE news", "PSUBSCRIBE n?ws", "SSUBSCRIBE news")
    cast.hear("a", 3)
    assert cast["b"].say("PUBLISH news hello") == b":2\r\n"
    first, second = cast.hear("a", 2)
    assert first[1:] == bulks("message", "news", "hello")[1:]
    assert second[1:] == bulks("pmessage", "n?ws", "news", "hello")[1:]
    assert first[:1] == (b"*" if resp == 2 else b">")
    assert cast["b"].say("SPUBLISH news shards") == b":1\r\n"
    (third,) = cast.hear("a")
    assert third[1:] == bulks("smessage", "news", "shards")[1:]
    assert cast["b"].say("PUBLISH other hello") == b":0\r\n"
    assert cast["b"].say("PUBLISH naws hello") == b":1\r\n"
    cast.hear("a")
    cast.hears_nothing("a")


def test_messages_hold_any_bytes(cast: Cast) -> None:
    channel, text = b"\r\n\0*\xff", bytes(range(256)) * 500
    assert cast["a"].ask("SUBSCRIBE", channel) == b"*3\r\n$9\r\nsubscribe\r\n$5\r\n\r\n\0*\xff\r\n:1\r\n"
    assert cast["b"].ask("PUBLISH", channel, text) == b":1\r\n"
    assert cast["b"].ask("PUBLISH", channel, b"") == b":1\r\n"
    assert text in cast.hear("a", 2)[0]
    assert cast["c"].ask("PUBSUB", "NUMSUB", channel, b"") == b"*4\r\n$5\r\n\r\n\0*\xff\r\n:1\r\n$0\r\n\r\n:0\r\n"


def test_patterns_are_globs(cast: Cast) -> None:
    patterns = ["h?llo", "h[ae]llo", "h[^e]llo", "h*", "h\\*llo", "[a-i]ello"]
    for number, pattern in enumerate(patterns):
        cast.send(f"client {number}", f"PSUBSCRIBE {pattern}")
        cast.hear(f"client {number}")
    for channel in ("hello", "hallo", "hillo", "h*llo", "heello", "aello", "x"):
        cast["speaker"].ask("PUBLISH", channel, "text")
    for number in range(len(patterns)):
        cast.send(f"client {number}", "PING end")
        pair = cast[f"client {number}"]
        while (frame := pair.ours.reply()) != bulks("pong", "end"):
            assert frame == pair.theirs.reply()
        assert pair.theirs.reply() == frame


def test_messages_stand_between_replies_as_they_were_published(cast: Cast) -> None:
    cast["a"].ours.ask("HELLO", 3)
    cast["a"].theirs.ask("HELLO", 3)
    cast["a"].say("SUBSCRIBE x")
    for number in range(20):
        assert cast["b"].say(f"PUBLISH x {number}") == b":1\r\n"
        cast["a"].ours.send("XADD", "s", f"{number + 1}-1", "f", "v")
        cast["a"].theirs.send("XADD", "s", f"{number + 1}-1", "f", "v")
        message, reply = cast.hear("a", 2)
        assert message[:1] == b">"
        assert reply == b"$%d\r\n%d-1\r\n" % (len(f"{number + 1}-1"), number + 1)

    cast["a"].say("SUBSCRIBE x")
    cast["a"].say("UNSUBSCRIBE x")
    assert cast["b"].say("PUBLISH x text") == b":0\r\n"
    cast.hears_nothing("a")
    cast["a"].say("PSUBSCRIBE x")
    cast["a"].say("PUNSUBSCRIBE x")
    assert cast["b"].say("PUBLISH x text") == b":0\r\n"
    cast.hears_nothing("a")


def test_who_has_gone_is_not_counted(cast: Cast) -> None:
    for name in ("left", "quit", "stays"):
        cast[name].say("SUBSCRIBE x")
    cast["left"].ours.close()
    cast["left"].theirs.close()
    cast["quit"].say("QUIT")
    speaker = cast["speaker"]
    for client in (speaker.ours, speaker.theirs):
        until(lambda client=client: client.ask("PUBLISH", "x", "text") == b":1\r\n", "one subscriber")
    assert speaker.say("PUBSUB NUMSUB x") == bulks("x", 1)


# -- subscribers in RESP2 ----------------------------------------------------------------------------------------------

REFUSED = [
    *("XADD s * f v", "XLEN s", "xread streams s 0", "MULTI", "EXEC", "WATCH s", "INFO", "CLIENT ID", "client LIST"),
    *("CLIENT", "CONFIG GET port", "PUBLISH x text", "PUBSUB CHANNELS", "PUBSUB", "SELECT 1", "AUTH x", "HELLO 3"),
    *("MONITOR", "COMMAND", "ECHO x", "NONSENSE", "XADD s", "CLIENT NONSENSE", "SPUBLISH x y", "CLIENT REPLY OFF"),
]


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])
def test_subscribers_in_resp2_may_not_do_much_else(cast: Cast, kind: str) -> None:
    cast["a"].say(f"{kind} x")
    for line in REFUSED:
        cast["a"].say(line)
    assert cast["a"].say("XLEN s").startswith(b"-ERR Can't execute 'xlen': only")


@pytest.mark.parametrize(
    "line", ["PING", "PING text", "PING a b", "ping", "SUBSCRIBE", "UNSUBSCRIBE y", "PUNSUBSCRIBE"]
)
def test_subscribers_in_resp2_may_still(cast: Cast, line: str) -> None:
    cast["a"].say("SUBSCRIBE x")
    cast["a"].say(line)
    cast["a"].say("PING")


def test_the_last_name_unsubscribed_ends_the_restriction(cast: Cast) -> None:
    for line in ("SUBSCRIBE x", "PSUBSCRIBE y", "SSUBSCRIBE z", "UNSUBSCRIBE", "XLEN s", "PUNSUBSCRIBE", "XLEN s"):
        cast["a"].say(line)
    cast["a"].say("SUNSUBSCRIBE z")
    assert cast["a"].say("XLEN nothing") == b":0\r\n"
    assert cast["a"].say("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("resp", [2, 3])
def test_a_transaction_subscribes_to_no_shard_channel(cast: Cast, resp: int) -> None:
    pair = cast["a"]
    cast.send("a", f"HELLO {resp}")
    pair.ours.reply()
    pair.theirs.reply()  # the greeting tells versions
    for line in ("MULTI", "SSUBSCRIBE x", "SUNSUBSCRIBE x", "XLEN nothing", "EXEC", "XLEN nothing"):
        pair.say(line)


def test_subscribers_in_resp3_may_do_everything(cast: Cast) -> None:
    pair = cast["a"]
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
    pair.say("SUBSCRIBE x")
    for line in (
        "PING",
        "PING text",
        "XADD s 1-1 f v",
        "XLEN s",
        "MULTI",
        "XLEN s",
        "EXEC",
        "PUBSUB CHANNELS",
        "DEL s",
    ):
        pair.say(line)


def test_going_back_to_resp2_restricts_a_subscriber(cast: Cast) -> None:
    pair = cast["a"]
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
        client.ask("SUBSCRIBE", "x")
        client.ask("HELLO", 2)
    for line in ("XLEN s", "PING", "HELLO 3"):
        pair.say(line)
    assert cast["b"].say("PUBLISH x text") == b":1\r\n"
    assert cast.hear("a") == [bulks("message", "x", "text")]


def test_quit_ends_it_all(cast: Cast) -> None:
    cast.send("a", "SUBSCRIBE x", "QUIT", "PING")
    pair = cast["a"]
    ours, theirs = pair.ours.rest_until_closed(), pair.theirs.rest_until_closed()
    assert ours == theirs == bulks("subscribe", "x", 1) + b"+OK\r\n"


@pytest.mark.parametrize("resp", [2, 3])
def test_reset_ends_all_subscriptions_silently(cast: Cast, resp: int) -> None:
    pair = cast["a"]
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", resp)
    for line in ("SUBSCRIBE x", "PSUBSCRIBE y", "SSUBSCRIBE z"):
        pair.say(line)
    assert pair.say("RESET") == b"+RESET\r\n"
    assert pair.say("PUBLISH x text") == b":0\r\n"
    assert pair.say("PUBLISH y text") == b":0\r\n"
    assert pair.say("SPUBLISH z text") == b":0\r\n"
    assert pair.say("PUBSUB NUMPAT") == b":0\r\n"


# -- publishing in transactions, and to oneself ------------------------------------------------------------------------


def test_messages_of_a_transaction_go_out_when_it_runs(cast: Cast) -> None:
    cast["a"].say("SUBSCRIBE x")
    cast.send("b", "MULTI", "PUBLISH x 1", "XADD s 1-1 f v", "PUBLISH x 2")
    assert cast.hear("b", 4)[-1] == b"+QUEUED\r\n"
    cast.hears_nothing("a")
    assert cast["b"].say("EXEC") == b"*3\r\n:1\r\n$3\r\n1-1\r\n:1\r\n"
    assert cast.hear("a", 2) == [bulks("message", "x", "1"), bulks("message", "x", "2")]
    cast["b"].say("DEL s")


def test_messages_of_a_transaction_given_up_go_to_nobody(cast: Cast) -> None:
    cast["a"].say("SUBSCRIBE x")
    for line in ("MULTI", "PUBLISH x 1", "DISCARD", "MULTI", "PUBLISH x 1", "NONSENSE", "EXEC"):
        cast["b"].say(line)
    cast.hears_nothing("a")


def test_who_publishes_to_itself_hears_of_it_behind_the_reply(client: RawClient) -> None:
    """As in Redis since 7.2; 7.0 sends the message first, inside of EXEC's array even."""
    client.ask("HELLO", 3)
    client.ask("SUBSCRIBE", "x")
    client.ask("PSUBSCRIBE", "*")
    message, pattern_message = bulks("message", "x", "1")[1:], bulks("pmessage", "*", "x", "1")[1:]
    assert client.ask("PUBLISH", "x", "1") == b":2\r\n"
    assert [client.reply(), client.reply()] == [b">" + message, b">" + pattern_message]
    client.send_bytes(b"".join(encode(line.split()) for line in ("MULTI", "PUBLISH x 1", "XLEN s", "EXEC", "XLEN s")))
    assert [client.reply() for _ in range(3)] == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
    assert client.reply() == b"*2\r\n:2\r\n:0\r\n"
    assert [client.reply() for _ in range(3)] == [b">" + message, b">" + pattern_message, b":0\r\n"]


def test_a_blocked_client_is_sent_messages_meanwhile(cast: Cast) -> None:
    pair = cast["a"]
    for client in (pair.ours, pair.theirs):
        client.ask("HELLO", 3)
    pair.say("SUBSCRIBE x")
    cast.send("a", "XREAD BLOCK 0 STREAMS s $")
    for client in (cast["b"].ours, cast["b"].theirs):
        until_blocked(client, 1)
    assert cast["b"].say("PUBLISH x text") == b":1\r\n"
    assert cast.hear("a") == [b">" + bulks("message", "x", "text")[1:]]
    cast["b"].say("XADD s 1-1 f v")
    assert b"1-1" in cast.hear("a")[0]
    cast["b"].say("DEL s")


def test_messages_stay_out_of_a_reply_sent_in_pieces(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as reader:
        reader.ask("HELLO", 3)
        reader.ask("SUBSCRIBE", "x")
        for _ in range(25):
            client.pipeline([("XADD", "s", "*", "f", b"v" * 1000) for _ in range(1000)])
        reader.send("XRANGE", "s", "-", "+")  # 25 MB, none of which is read as yet
        until(lambda: int(lines(client.tree("CLIENT", "LIST", "TYPE", "pubsub"))[0]["omem"]) > 0, "a reply")
        assert client.ask("PUBLISH", "x", "text") == b":1\r\n"
        assert client.ask("PUBLISH", "x", "more") == b":1\r\n"
        assert len(parse(reader.reply()).children or ()) == 25_000
        assert reader.reply() == b">" + bulks("message", "x", "text")[1:]
        assert reader.reply() == b">" + bulks("message", "x", "more")[1:]


# -- what others see ---------------------------------------------------------------------------------------------------


def test_pubsub_tells_who_listens_to_what(cast: Cast) -> None:
    for name, line in (("a", "SUBSCRIBE x y"), ("b", "SUBSCRIBE x"), ("c", "PSUBSCRIBE x* z*"), ("d", "PSUBSCRIBE x*")):
        cast.send(name, line)
        cast.hear(name, len(line.split()) - 1)
    cast["e"].say("SSUBSCRIBE s")
    watcher = cast["watcher"]
    assert watcher.say("PUBSUB NUMSUB x y z x") == bulks("x", 2, "y", 1, "z", 0, "x", 2)
    assert watcher.say("PUBSUB SHARDNUMSUB s x") == bulks("s", 1, "x", 0)
    assert watcher.say("PUBSUB NUMPAT") == b":2\r\n"
    assert watcher.say("PUBSUB CHANNELS y*") == bulks("y")
    assert watcher.say("PUBSUB CHANNELS s*") == bulks()
    assert watcher.say("PUBSUB SHARDCHANNELS ?") == bulks("s")
    everything = [
        {name.text for name in side.tree("PUBSUB", "CHANNELS").children or ()}
        for side in (watcher.ours, watcher.theirs)
    ]
    assert everything[0] == everything[1] == {b"x", b"y"}
    for client in (watcher.ours, watcher.theirs):
        stats = client.ask("INFO", "stats")
        for line in (b"pubsub_channels:2\r\n", b"pubsub_patterns:2\r\n", b"pubsubshard_channels:1\r\n"):
            assert line in stats
    assert b"pubsub_clients:5\r\n" in watcher.ours.ask("INFO", "clients")


def test_client_list_tells_subscribers(cast: Cast) -> None:
    pair = cast["a"]
    cast.send("a", "CLIENT SETNAME listener", "SUBSCRIBE x y", "PSUBSCRIBE z", "SSUBSCRIBE s")
    cast.hear("a", 5)
    seen = []
    for side in (cast["watcher"].ours, cast["watcher"].theirs):
        (line,) = lines(side.tree("CLIENT", "LIST", "TYPE", "PUBSUB"))
        seen.append({name: line[name] for name in ("name", "flags", "sub", "psub", "ssub", "cmd", "resp")})
        assert line["name"] not in {line["name"] for line in lines(side.tree("CLIENT", "LIST", "TYPE", "NORMAL"))}
    assert seen[0] == seen[1]
    assert (seen[0]["flags"], seen[0]["sub"], seen[0]["psub"], seen[0]["ssub"]) == ("P", "2", "1", "1")
    for client in (pair.ours, pair.theirs):
        client.ask("RESET")
        assert own_line(client)["flags"] == "N"


def test_subscribers_are_killed_by_type(cast: Cast) -> None:
    for name in ("a", "b"):
        cast[name].say("SUBSCRIBE x")
    watcher = cast["watcher"]
    assert watcher.say("CLIENT KILL TYPE pubsub") == b":2\r\n"
    assert watcher.say("PUBLISH x text") == b":0\r\n"
    assert watcher.say("CLIENT KILL TYPE pubsub") == b":0\r\n"
    assert watcher.say("CLIENT KILL TYPE normal SKIPME yes ID 99999999") == b":0\r\n"
    for name in ("a", "b"):
        assert cast[name].ours.rest_until_closed() == cast[name].theirs.rest_until_closed() == b""


def test_subscribers_are_spared_when_normal_clients_are_killed(cast: Cast) -> None:
    cast["a"].say("SUBSCRIBE x")
    watcher, bystander = cast["watcher"], cast["bystander"]
    bystander.say("PING")
    for side in (watcher.ours, watcher.theirs):
        assert int(side.tree("CLIENT", "KILL", "TYPE", "normal").text) >= 1
    assert bystander.ours.rest_until_closed() == bystander.theirs.rest_until_closed() == b""
    assert watcher.say("PUBLISH x text") == b":1\r\n"
    cast.hear("a")


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_subscriber_that_does_not_read_is_cut_off(client: RawClient, server: RiverbedServer) -> None:
    before = client.tree("CONFIG", "GET", "client-output-buffer-limit").children or ()
    client.ask("CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 0 0")
    client.ask("CONFIG", "RESETSTAT")
    with server.client() as slow, server.client() as quick:
        slow.ask("SUBSCRIBE", "x")
        quick.ask("SUBSCRIBE", "y")
        sent = 0
        while client.ask("PUBLISH", "x", b"v" * 100_000) == b":1\r\n":
            sent += 100_000
            assert sent < 100_000_000
        assert b"client_output_buffer_limit_disconnections:1\r\n" in client.ask("INFO", "stats")
        assert len(slow.rest_until_closed()) < sent + 1_000_000
        assert re.search(r"client 127[.0-9]+:\d+ is cut off: it has not read \d+ bytes", server.log_text())
        assert client.ask("PUBLISH", "y", "text") == b":1\r\n"
        assert quick.reply() == bulks("message", "y", "text")
    client.ask("CONFIG", "SET", "client-output-buffer-limit", before[1].text)


def test_a_pause_of_writes_lets_messages_pass(client: RawClient, server: RiverbedServer) -> None:
    """Redis holds them back, and Sentinel's hello with them, behind which it waits for the answer to PING."""
    with server.client() as listener, server.client() as sentinel:
        listener.ask("SUBSCRIBE", "x")
        assert client.ask("CLIENT", "PAUSE", 60_000, "WRITE") == b"+OK\r\n"
        assert sentinel.ask("PUBLISH", "x", "hello") == b":1\r\n"
        assert listener.reply() == bulks("message", "x", "hello")
        assert sentinel.ask("PING") == b"+PONG\r\n"
        assert client.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"


def test_thousands_of_names_come_and_go(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as listener:
        names = [f"channel:{number}" for number in range(5000)]
        listener.send("SUBSCRIBE", *names)
        assert [parse(listener.reply()).children[2].text for _ in names][-1] == b"5000"
        assert client.ask("PUBLISH", names[4321], "text") == b":1\r\n"
        assert listener.reply() == bulks("message", names[4321], "text")
    until(lambda: client.ask("PUBSUB", "CHANNELS") == b"*0\r\n", "no channel")
