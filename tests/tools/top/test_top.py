from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from rich.console import Console

from riverbed.tools.live.redisclient import Address, RedisClient
from riverbed.tools.stream_stat import GroupStat, StreamStat
from riverbed.tools.top import sample as topsample
from riverbed.tools.top.rates import GroupRates, Rates, Trends, rates, sparkline, trend_values
from riverbed.tools.top.sample import Sample, Sampler
from riverbed.tools.top.view import ORDERS, as_json, rate_text, screen
from tests.support import program
from tests.support.servers import RedisServer, RiverbedServer, Server

StartRiverbed = Callable[..., RiverbedServer]
StartRedis = Callable[..., RedisServer]

INFO = {
    "riverbed_version": "0.1.0",
    "role": "master",
    "run_id": "x",
    "uptime_in_seconds": "90000",
    "total_commands_processed": "1000",
    "total_net_input_bytes": "0",
    "total_net_output_bytes": "0",
    "master_repl_offset": "100",
    "cmdstat_xadd": "calls=100,usec=1,failed_calls=10",
}


run = partial(program.run, "top")


def fill(server: Server) -> None:
    with server.client() as client:
        client.pipeline([("XADD", "orders", f"{number}-0", "f", "v") for number in range(1, 21)])
        client.ask("XADD", "[red]\x1b[2J", "1-0", "f", "v")
        client.ask("XGROUP", "CREATE", "orders", "workers", "0")
        client.ask("XREADGROUP", "GROUP", "workers", "alice", "COUNT", "8", "STREAMS", "orders", ">")
        client.ask("XACK", "orders", "workers", "1-0", "2-0")


def sample_of(server: Server, sampler: Sampler) -> Sample:
    with RedisClient(Address("127.0.0.1", server.port), 60) as client:
        return sampler.take(client)


def group(name: bytes = b"g", *, pending: int = 0, read: int | None = 0, lag: int | None = 0) -> GroupStat:
    return GroupStat(name, 1, pending, None, 1, lag, "0-0", read)


def stream(key: bytes = b"s", *groups: GroupStat, length: int = 0, added: int | None = 0) -> StreamStat:
    return StreamStat(0, key, length, added, 100, groups)


def sample(*streams: StreamStat, moment_s: float = 0.0, **info: str) -> Sample:
    return Sample(moment_s, 1_700_000_000_000, INFO | info, streams, len(streams))


# -- rates -------------------------------------------------------------------------------------------------------------


def test_rates_are_what_changed_by_the_time_it_took() -> None:
    before = sample(stream(b"s", group(pending=5, read=10), added=100))
    now = sample(
        stream(b"s", group(pending=15, read=50), added=300),
        moment_s=10.0,
        total_commands_processed="3000",
        total_net_input_bytes="500",
        master_repl_offset="1100",
        cmdstat_xadd="calls=320,usec=1,failed_calls=10",
    )
    found = rates(before, now)
    assert (found.commands, found.received_bytes, found.log_bytes, found.added) == (200, 50, 100, 22)
    assert found.streams == {(0, b"s"): 20}
    assert found.groups == {(0, b"s", b"g"): GroupRates(4, 3)}
    assert (found.delivered, found.acked) == (4, 3)


def test_there_are_no_rates_in_the_first_sample_and_after_a_restart() -> None:
    assert rates(None, sample()) == Rates()
    assert rates(sample(), sample(moment_s=1.0, run_id="y")) == Rates()
    assert rates(sample(), sample()) == Rates()


def test_what_was_set_back_or_is_new_or_cannot_be_told_has_no_rate() -> None:
    before = sample(stream(b"s", group(read=50), added=300), stream(b"old", group(read=None), added=None))
    now = sample(
        stream(b"s", group(read=10), group(b"new", read=5), added=100),
        stream(b"old", group(read=None), added=None),
        stream(b"new", added=5),
        moment_s=1.0,
        total_commands_processed="10",
    )
    found = rates(before, now)
    assert set(found.streams.values()) == {None}
    assert set(found.groups.values()) == {GroupRates()}
    assert (found.commands, found.delivered, found.acked) == (None, None, None)


def test_a_replica_adds_what_its_streams_tell() -> None:
    before = sample(stream(added=100), role="slave")
    assert rates(before, sample(stream(added=130), moment_s=10.0, role="slave")).added == 3


def test_sparklines_are_in_proportion_and_right_aligned() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 1, 4, 8]) == "▁▂▅█"
    trends = Trends()
    assert trends.sparkline("x") == " " * 8
    for number in range(20):
        trends.note({"x": float(number), "y": None})
    assert trends.sparkline("x") == "▆▆▆▇▇███"
    trends.note({"y": 1.0})
    assert (trends.sparkline("x"), trends.sparkline("y")) == (" " * 8, "       █")


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "-"), (0.0, "0"), (0.04, "0.0"), (3.14, "3.1"), (12.6, "13"), (12345.6, "12,346"), (12.4e6, "12M")],
)
def test_rates_are_short(rate: float | None, text: str) -> None:
    assert rate_text(rate) == text


# -- samples -----------------------------------------------------------------------------------------------------------


def test_a_sample_has_the_figures_of_the_server_and_its_streams(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    found = sample_of(riverbed, Sampler(10))
    assert (found.number("connected_clients"), found.stream_total) == (1, 2)
    assert (found.part("cmdstat_xadd", "calls"), found.part("cmdstat_xadd", "nothing")) == (21, None)
    assert found.number("riverbed_average_fsync_ms") is not None
    assert found.number("riverbed_last_checkpoint_ms") is not None
    orders = next(each for each in found.streams if each.key == b"orders")
    assert (orders.length, orders.entries_added) == (20, 20)
    (workers,) = orders.groups
    assert (workers.pending, workers.lag, workers.entries_read) == (6, 12, 8)


def test_no_more_streams_are_looked_at_than_asked_for_and_those_are_the_longest(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        for db in (0, 3):
            client.ask("SELECT", db)
            client.pipeline([("XADD", f"k{number}", "1-0", "f", "v") for number in range(60)])
        client.ask("XADD", "k59", "2-0", "f", "v")
        with patch.object(topsample, "_KEYS_A_SAMPLE", 50), patch.object(topsample, "PAGE", 25):
            sampler = Sampler(3)
            looked_at = []
            for _ in range(8):
                found = sample_of(riverbed, sampler)
                looked_at.append(len(found.streams))
                assert found.stream_total == 120
            assert looked_at == [3] * 8
            assert (3, b"k59") in [(each.db, each.key) for each in found.streams]
            client.ask("FLUSHALL")
            assert sample_of(riverbed, sampler).streams == ()


def test_only_the_database_of_the_address_and_the_keys_wanted_are_looked_at(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.pipeline([("XADD", "a1", "1-0", "f", "v"), ("SELECT", 2), ("XADD", "a2", "1-0", "f", "v")])
        client.ask("XADD", "b2", "1-0", "f", "v")
    with RedisClient(Address("127.0.0.1", riverbed.port, database=2), 60) as client_of_2:
        assert [each.key for each in Sampler(10).take(client_of_2).streams] == [b"a2", b"b2"]
        assert [each.key for each in Sampler(10, lambda key: key.startswith(b"b")).take(client_of_2).streams] == [b"b2"]


# -- the screen --------------------------------------------------------------------------------------------------------


def drawn(found: Sample, *, width: int = 80, height: int = 24, order: str = "length", trouble: str = "") -> list[str]:
    console = Console(width=width, height=height, force_terminal=True, color_system=None, highlight=False)
    trends = Trends()
    trends.note(trend_values(found, Rates()))
    with console.capture() as capture:
        console.print(screen(console, "localhost:6379", found, Rates(), trends, order, trouble))
    return capture.get().splitlines()


@pytest.mark.parametrize(("streams", "groups"), [(0, 0), (3, 0), (100, 0), (100, 1), (2, 50), (50, 2)])
@pytest.mark.parametrize("height", [24, 50])
def test_it_fits_the_terminal(streams: int, groups: int, height: int) -> None:
    found = sample(
        *(stream(b"stream-%d" % n, *(group(b"group-%d" % g) for g in range(groups))) for n in range(streams)),
        riverbed_writes_refused="1",
        riverbed_writes_wait_for_disk="1",
        riverbed_writes_refused_reason="the disk is full",
        aof_rewrite_in_progress="1",
    )
    lines = drawn(found, height=height, trouble="lost")
    assert len(lines) <= height
    assert max(map(len, lines)) <= 80
    assert lines[-1].strip().endswith("q quits")
    assert sum("stream-" in line for line in lines) > min(streams, 3) - 1
    assert sum("group-" in line for line in lines) >= min(streams * groups, 3)
    assert any("writes are refused: the disk is full" in line for line in lines)
    assert any("writes wait for the disk" in line for line in lines)


def test_a_narrow_terminal_has_names_rather_than_every_number() -> None:
    lines = drawn(sample(stream(b"orders", group(b"workers")), stream(b"")), width=40)
    found = [line.split()[:2] for line in lines if line.startswith(("orders", "(empty)"))]
    assert found[:2] == [["(empty)", "0"], ["orders", "0"]]


def test_numbers_are_aligned_and_not_cut_at_80_columns() -> None:
    busy = {
        "riverbed_last_fsync_ms": "11.11",
        "riverbed_average_fsync_ms": "22.22",
        "riverbed_longest_fsync_ms": "33.33",
        "riverbed_lmdb_used_bytes": "123456789",
        "riverbed_lmdb_free_bytes": "123456789",
        "connected_clients": "9999",
    }
    name = b"n" * 300
    found = sample(stream(name, group(name, pending=9_999_999, lag=123_456_789), length=123_456_789, added=5), **busy)
    lines = drawn(found)
    assert any("fsync ms   11.1 avg 22.2 max 33.3" in line for line in lines)
    assert any("tables     123 MB, 123 MB free" in line for line in lines)
    assert any(re.search(r"n… +123M +-.* 100 B +1 *$", line) for line in lines)
    assert any(re.search(r"n… n+… +9,999,999 +123M ", line) for line in lines)


def test_nothing_that_a_server_tells_moves_the_cursor() -> None:
    info = topsample.parse_info(b"redis_version:7\x1b[2J\r\nmaster_host:\xc2\x9b31m\r\n")
    assert info == {"redis_version": "7\\x1b[2J", "master_host": "\\x9b31m"}
    assert "gone\\x1b[2J" in "".join(drawn(sample(), trouble="gone\x1b[2J"))


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e999"])
def test_numbers_that_are_none_are_dashes(number: str) -> None:
    names = ("uptime_in_seconds", "total_commands_processed", "used_memory", "riverbed_last_fsync_ms")
    before, now = (sample(moment_s=moment_s, **dict.fromkeys(names, number)) for moment_s in (0.0, 1.0))
    assert rates(before, now).commands is None
    assert any(re.search(r"memory +- ", line) for line in drawn(now))
    assert sample(cmdstat_xadd=f"calls={number}").part("cmdstat_xadd", "calls") is None


def test_what_a_server_does_not_tell_is_a_dash() -> None:
    found = Sample(0.0, 0, {"redis_version": "7.0.15"}, (), 0)
    lines = drawn(found)
    assert lines[0].startswith("localhost:6379  Redis 7.0.15, primary")
    assert any(re.search(r"fsync ms +- *$", line) for line in lines)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_puts_the_largest_first(order: str) -> None:
    small = StreamStat(0, b"b", 1, 1, 10, (GroupStat(b"g", 1, 1, 10, 1, 1, "0-0", 0),))
    large = StreamStat(0, b"a", 2, 2, 20, (GroupStat(b"g", 1, 2, 20, 1, 2, "0-0", 0),))
    found = replace(sample(small, large), moment_s=1.0)
    fast = Rates(
        streams={(0, b"a"): 2.0, (0, b"b"): 1.0},
        groups={(0, b"a", b"g"): GroupRates(2.0, 0.0), (0, b"b", b"g"): GroupRates(1.0, 0.0)},
    )
    told = as_json("x:1", found, fast, order)
    assert [each["key"] for each in told["streams"]] == ["a", "b"]
    lines = drawn(found, order=order)
    rows = [line.split()[0] for line in lines if line.startswith(("a ", "b "))]
    assert rows == ["a", "b", "a", "b"]


# -- the command -------------------------------------------------------------------------------------------------------


def test_samples_are_lines_of_json_for_machines(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    result = run(f"localhost:{riverbed.port}", "--json", "--count", 2, "--interval", 0.1)
    assert result.exit_code == 0
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["server"], first["role"], first["stream_total"], first["clients"]) == ("riverbed", "primary", 2, 1)
    assert (first["commands_per_second"], first["streams"][0]["added_per_second"]) == (None, None)
    assert second["commands_per_second"] > 0
    assert second["streams"][0]["added_per_second"] == second["added_per_second"] == 0
    assert second["streams"][0]["key"] == "orders"
    (workers,) = second["streams"][0]["groups"]
    assert (workers["pending"], workers["lag"], workers["acked_per_second"]) == (6, 12, 0)


def test_samples_are_printed_where_there_is_no_terminal(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    result = run(f"127.0.0.1:{riverbed.port}", "--count", 2, "--interval", 0.1)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert result.stdout.count("\norders ") == 2 * 2
    assert result.stdout.count("\n[red]\\x1b[2J ") == 2


def test_a_real_redis_is_watched_as_far_as_it_tells(redis_server: RedisServer) -> None:
    fill(redis_server)
    result = run(f"localhost:{redis_server.port}", "--json", "--count", 2, "--interval", 0.1)
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["server"], found["fsync_last_ms"], found["blocked"]) == ("redis", None, 0)
    assert (found["commands_per_second"] > 0, found["streams"][0]["groups"][0]["lag"]) == (True, 12)
    assert f"Redis {found['version']}, primary" in run(f"localhost:{redis_server.port}", "--count", 1).stdout


def test_a_server_that_is_down_or_refuses_is_told_at_once(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "secret"})
    for target, reason in (
        ("localhost:1", "localhost:1 cannot be reached: "),
        (f"localhost:{server.port}", "does not let us in: NOAUTH"),
        (f"redis://:wrong@localhost:{server.port}", "does not let us in: WRONGPASS"),
        ("/some/where", "/some/where is not a server: expected HOST:PORT or redis://..."),
    ):
        result = run(target)
        assert (result.exit_code, result.stdout) == (2, "")
        assert reason in result.stderr.replace("\n", " ")
    assert run(f"redis://:secret@localhost:{server.port}", "--count", 1).exit_code == 0


def test_help_shows_an_example() -> None:
    text = run("--help").stdout
    assert "riverbed top localhost:6379" in text
    assert "\n  top " in program.run("--help").stdout
