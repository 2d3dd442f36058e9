from __future__ import annotations

import time

import pytest

from tests.conftest import StartRiverbed
from tests.pair import Pair
from tests.raw import Node, RawClient
from tests.servers import RiverbedServer

SYNTAX = b"-ERR syntax error\r\n"
OK = b"+OK\r\n"
HELP = ("MEMORY HELP", "SLOWLOG HELP", "LATENCY HELP", "DEBUG HELP")


def texts(node: Node) -> list[bytes]:
    return [child.text for child in node.children or ()]


# -- words and subcommands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("TIME x", "LASTSAVE x", "SAVE x", "MONITOR x", "DEBUG", "SLOWLOG", "LATENCY", "MEMORY"),
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
    assert texts(lines)[-1] == b"    Print this help."


# -- TIME, saving ------------------------------------------------------------------------------------------------------


def test_time_is_seconds_and_microseconds(client: RawClient) -> None:
    before = time.time()
    seconds, microseconds = (int(text) for text in texts(client.tree("TIME")))
    assert before - 0.001 <= seconds + microseconds / 1e6 <= time.time() + 0.001
    assert microseconds < 1_000_000


def test_saving_makes_a_checkpoint_that_lastsave_tells(client: RawClient) -> None:
    client.ask("XADD", "a", "1-1", "f", "v")
    assert client.ask("SAVE") == OK
    assert abs(int(client.tree("LASTSAVE").text) - time.time()) < 60
    assert client.ask("XLEN", "a") == b":1\r\n"


@pytest.mark.parametrize("line", ["BGSAVE", "BGSAVE SCHEDULE", "bgsave schedule"])
def test_saving_in_the_background_says_so(client: RawClient, line: str) -> None:
    client.ask("XADD", "a", "1-1", "f", "v")
    assert client.ask(*line.split()) == b"+Background saving started\r\n"
    assert client.ask("XLEN", "a") == b":1\r\n"


@pytest.mark.parametrize("line", ["BGSAVE x", "BGSAVE SCHEDULE SCHEDULE"])
def test_bgsave_refuses_other_words(pair: Pair, line: str) -> None:
    assert pair.say(line) == SYNTAX


def test_save_is_refused_inside_a_transaction(pair: Pair) -> None:
    pair.ask("MULTI")
    assert pair.ask("SAVE").startswith(b"-ERR Command not allowed inside a transaction")
    pair.ask("DISCARD")


def test_a_checkpoint_amid_a_pipeline_keeps_what_came_before_and_after(client: RawClient) -> None:
    replies = client.pipeline(
        [("XADD", "a", "1-1", "f", "v"), ("SAVE",), ("XADD", "a", "2-1", "f", "v"), ("XLEN", "a")]
    )
    assert replies[1:] == [OK, b"$3\r\n2-1\r\n", b":2\r\n"]


# -- SHUTDOWN ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("SHUTDOWN x", "SHUTDOWN SAVE NOSAVE", "SHUTDOWN ABORT NOW", "SHUTDOWN NOSAVE ABORT"),
        *("SHUTDOWN NOSAVE NOW FORCE x", "SHUTDOWN ABORT SAVE"),
    ],
)
def test_shutdown_refuses_words_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line) == SYNTAX


def test_there_is_no_shutdown_to_abort(pair: Pair) -> None:
    assert pair.ask("SHUTDOWN", "ABORT") == b"-ERR No shutdown in progress.\r\n"


def test_shutdown_is_refused_inside_a_transaction(pair: Pair) -> None:
    pair.ask("MULTI")
    assert pair.ask("SHUTDOWN").startswith(b"-ERR Command not allowed inside a transaction")
    pair.ask("DISCARD")


@pytest.mark.parametrize("line", ["SHUTDOWN", "SHUTDOWN NOSAVE", "shutdown save now force"])
def test_shutdown_ends_the_server_and_loses_nothing(start_riverbed: StartRiverbed, line: str) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.ask("XADD", "a", "1-1", "f", "v")
        client.send(*line.split())
        assert client.rest_until_closed() == b""
    assert server.wait_ended() == 0
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "a") == b":1\r\n"


# -- MONITOR -----------------------------------------------------------------------------------------------------------


def shown(client: RawClient) -> bytes:
    """What a monitor is sent next, without time and address."""
    line = client.reply()
    return line[line.index(b"[") :].partition(b"] ")[2]


def test_monitor_shows_what_others_send(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        assert monitor.ask("MONITOR") == OK
        client.ask("XADD", "a", "*", b'f"\n\x00\xff', "v")
        client.ask("xlen", "a")
        assert shown(monitor) == b'"XADD" "a" "*" "f\\"\\n\\x00\\xff" "v"\r\n'
        assert shown(monitor) == b'"xlen" "a"\r\n'


def test_monitor_tells_time_database_and_address(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        monitor.ask("MONITOR")
        client.ask("SELECT", 3)
        client.ask("XLEN", "a")
        monitor.reply()
        line = monitor.reply()
    moment, _, rest = line[1:].partition(b" ")
    assert abs(float(moment) - time.time()) < 60
    host, port = client.socket.getsockname()
    assert rest == f'[3 {host}:{port}] "XLEN" "a"\r\n'.encode()


def test_monitor_leaves_administration_out(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        monitor.ask("MONITOR")
        client.ask("CONFIG", "GET", "port")
        client.ask("XLEN", "a")
        assert shown(monitor) == b'"XLEN" "a"\r\n'


def test_a_monitor_that_resets_sees_no_more(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        monitor.ask("MONITOR")
        assert monitor.ask("RESET") == b"+RESET\r\n"
        client.ask("XLEN", "a")
        assert monitor.ask("PING") == b"+PONG\r\n"


# -- SLOWLOG -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_client(client: RawClient) -> RawClient:
    """A client of a server that logs every command but the settings of this fixture."""
    client.ask("CONFIG", "SET", "slowlog-log-slower-than", 0)
    client.ask("CLIENT", "SETNAME", "tester")
    client.ask("SLOWLOG", "RESET")
    return client


@pytest.fixture(autouse=True)
def _usual_settings(server: RiverbedServer) -> None:
    with server.client() as client:
        client.ask("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
        client.ask("CONFIG", "SET", "latency-monitor-threshold", 0)
        client.ask("SLOWLOG", "RESET")
        client.ask("LATENCY", "RESET")


def test_slow_commands_are_listed_newest_first(slow_client: RawClient) -> None:
    slow_client.ask("XLEN", "a")
    slow_client.ask("XLEN", "b")
    newest, older = (slow_client.tree("SLOWLOG", "GET", 2).children or ())[:2]
    number, moment, usec, words, address, name = newest.children or ()
    assert texts(words) == [b"XLEN", b"b"]
    assert texts((older.children or ())[3]) == [b"XLEN", b"a"]
    assert int(number.text) == int((older.children or ())[0].text) + 1
    assert abs(int(moment.text) - time.time()) < 60
    assert 0 <= int(usec.text) < 1_000_000
    host, port = slow_client.socket.getsockname()
    assert address.text == f"{host}:{port}".encode()
    assert name.text == b"tester"


def test_slowlog_get_bounds_how_many(slow_client: RawClient) -> None:
    for _ in range(30):
        slow_client.ask("XLEN", "a")
    assert len(slow_client.tree("SLOWLOG", "GET").children or ()) == 10
    assert len(slow_client.tree("SLOWLOG", "GET", 3).children or ()) == 3
    assert len(slow_client.tree("SLOWLOG", "GET", 0).children or ()) == 0
    length = int(slow_client.tree("SLOWLOG", "LEN").text)
    assert length >= 30
    assert len(slow_client.tree("SLOWLOG", "GET", -1).children or ()) >= length


@pytest.mark.parametrize("count", ["x", "-2", "1.5"])
def test_slowlog_get_refuses_other_counts(pair: Pair, count: str) -> None:
    assert pair.ask("SLOWLOG", "GET", count) == b"-ERR count should be greater than or equal to -1\r\n"


def test_slowlog_get_takes_one_count(pair: Pair) -> None:
    assert pair.ask("SLOWLOG", "get", 1, 2) == (
        b"-ERR unknown subcommand or wrong number of arguments for 'get'. Try SLOWLOG HELP.\r\n"
    )


def test_fast_commands_are_not_slow(client: RawClient) -> None:
    client.ask("CONFIG", "SET", "slowlog-log-slower-than", 10_000_000)
    client.ask("SLOWLOG", "RESET")
    client.ask("XLEN", "a")
    assert client.ask("SLOWLOG", "LEN") == b":0\r\n"


# -- LATENCY -----------------------------------------------------------------------------------------------------------


def test_a_spike_is_kept_and_forgotten(client: RawClient) -> None:
    client.ask("CONFIG", "SET", "latency-monitor-threshold", 5)
    client.ask("DEBUG", "SLEEP", "0.02")
    (latest,) = client.tree("LATENCY", "LATEST").children or ()
    event, moment, ms, highest = texts(latest)
    assert event == b"command"
    assert abs(int(moment) - time.time()) < 60
    assert 20 <= int(ms) == int(highest) < 5000
    (sample,) = client.tree("LATENCY", "HISTORY", "command").children or ()
    assert texts(sample) == [moment, ms]
    assert b"command: 1 spikes" in client.ask("LATENCY", "DOCTOR")
    assert client.ask("LATENCY", "RESET", "nothing") == b":0\r\n"
    assert client.ask("LATENCY", "RESET", "command") == b":1\r\n"
    assert client.ask("LATENCY", "LATEST") == b"*0\r\n"


def test_nothing_is_kept_while_the_monitor_is_off(client: RawClient) -> None:
    client.ask("DEBUG", "SLEEP", "0.01")
    assert client.ask("LATENCY", "LATEST") == b"*0\r\n"
    assert b"latency-monitor-threshold" in client.ask("LATENCY", "DOCTOR")


def test_latency_of_nothing_is_empty(pair: Pair) -> None:
    assert pair.ask("LATENCY", "HISTORY", "nothing") == b"*0\r\n"
    assert pair.ask("LATENCY", "RESET", "nothing") == b":0\r\n"
    assert pair.ask("LATENCY", "HISTOGRAM", "nothing") == b"*0\r\n"


def test_the_histogram_counts_calls_by_command(client: RawClient) -> None:
    client.ask("CONFIG", "RESETSTAT")
    client.pipeline([("EXISTS", "a")] * 5)
    client.ask("OBJECT", "ENCODING", "a")
    client.ask("HELLO", 3)
    ((name, told),) = client.tree("LATENCY", "HISTOGRAM", "EXISTS").pairs()
    assert name.text == b"exists"
    (calls, five), (_, histogram) = told.pairs()
    assert (calls.text, five.text) == (b"calls", b"5")
    assert histogram.pairs()[-1][1].text == b"5"
    assert [name.text for name, _ in client.tree("LATENCY", "HISTOGRAM", "object").pairs()] == [b"object|encoding"]
    assert b"exists" in [name.text for name, _ in client.tree("LATENCY", "HISTOGRAM").pairs()]


# -- MEMORY ------------------------------------------------------------------------------------------------------------


def test_memory_usage_grows_with_the_stream(client: RawClient) -> None:
    assert client.ask("MEMORY", "USAGE", "a") == b"$-1\r\n"
    client.ask("XADD", "a", "*", "f", "v")
    small = int(client.tree("MEMORY", "USAGE", "a").text)
    client.pipeline([("XADD", "a", "*", "f", "v" * 1000)] * 300)
    assert 0 < small < 1000
    assert 300_000 < int(client.tree("MEMORY", "USAGE", "a", "SAMPLES", 0).text) < 1_000_000


@pytest.mark.parametrize("options", ["x", "SAMPLES", "SAMPLES x", "SAMPLES -1", "SAMPLES 1 x", "SAMPLES 1 SAMPLES -1"])
@pytest.mark.parametrize("key", ["a", "nope"])
def test_memory_usage_refuses_options_as_redis_does(pair: Pair, key: str, options: str) -> None:
    pair.ask("XADD", "a", "1-1", "f", "v")
    assert pair.say(f"MEMORY USAGE {key} {options}").startswith(b"-ERR ")


def test_memory_is_reported_in_words_and_figures(client: RawClient, server: RiverbedServer) -> None:
    assert b" bytes are private to this process" in client.ask("MEMORY", "DOCTOR")
    assert client.ask("MEMORY", "PURGE") == OK
    assert client.ask("MEMORY", "MALLOC-STATS").startswith(b"$")
    figures = {name.text: value.text for name, value in client.tree("MEMORY", "STATS").pairs()}
    assert abs(int(figures[b"total.allocated"]) - server.private_bytes()) < 8 << 20
    assert figures[b"keys.count"] == b"0"


# -- DEBUG -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["What", "sleep", "SLEEP 0 0", "ERROR", "JMAP", "PROTOCOL"])
def test_debug_refuses_what_there_is_not(pair: Pair, line: str) -> None:
    word = line.partition(" ")[0]
    assert pair.say(f"DEBUG {line}") == (
        f"-ERR unknown subcommand or wrong number of arguments for '{word}'. Try DEBUG HELP.\r\n".encode()
    )


@pytest.mark.parametrize("seconds", ["0", "0.001", "x", "-1", "1e-3", "", ".001x"])
def test_debug_sleep_takes_what_c_takes_for_a_number(pair: Pair, seconds: str) -> None:
    assert pair.ask("DEBUG", "SLEEP", seconds) == OK


def test_debug_sleep_stalls_everybody(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        begun = time.monotonic()
        other.send("DEBUG", "SLEEP", "0.2")
        time.sleep(0.05)
        client.ask("PING")
        assert time.monotonic() - begun >= 0.2
        assert other.reply() == OK


def test_debug_error_answers_any_error(pair: Pair) -> None:
    assert pair.ask("DEBUG", "ERROR", "CODE some\r\ntext") == b"-CODE some  text\r\n"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", ["string", "integer", "null", "array", "map", "verbatim", "true", "false"])
def test_debug_protocol_shows_each_type_as_redis_does(pair: Pair, protocol: int, kind: str) -> None:
    pair.ours.ask("HELLO", protocol)
    pair.theirs.ask("HELLO", protocol)
    pair.ask("DEBUG", "PROTOCOL", kind)


def test_debug_protocol_names_the_types_there_are(client: RawClient) -> None:
    assert client.ask("DEBUG", "PROTOCOL", "x").endswith(b"|verbatim|true|false\r\n")


def test_the_digest_tells_states_apart_and_nothing_else(client: RawClient) -> None:
    empty = client.ask("DEBUG", "DIGEST")
    assert empty == b"+" + b"0" * 40 + b"\r\n"
    for number in range(1, 1200):
        client.send("XADD", "a", f"{number}-0", "f", "v")
    for _ in range(1, 1200):
        client.reply()
    one = client.ask("DEBUG", "DIGEST")
    client.ask("XADD", "b", "1-1", "f", "v")
    two = client.ask("DEBUG", "DIGEST")
    client.ask("EXPIREAT", "b", 4102444800)
    three = client.ask("DEBUG", "DIGEST")
    assert len({empty, one, two, three}) == 4
    client.ask("DEL", "b")
    assert client.ask("DEBUG", "DIGEST") == one
    client.ask("RENAME", "a", "c")
    assert client.ask("DEBUG", "DIGEST") != one
    client.ask("RENAME", "c", "a")
    client.ask("SAVE")
    assert client.ask("DEBUG", "DIGEST") == one
    client.ask("XDEL", "a", "600-0")
    assert client.ask("DEBUG", "DIGEST") != one
