from __future__ import annotations

import os
import time

import pytest

from riverbed.server.commands.admin.info import _human
from riverbed.server.version import IS_COMPILED
from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.read_log import unpadded
from tests.support.servers import RiverbedServer
from tests.support.waiting import until, until_blocked

DEFAULT = [
    *("Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "CPU", "Modules", "Errorstats"),
    *("Cluster", "Keyspace"),
]
ALL = [
    *("Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "CPU", "Modules", "Commandstats"),
    *("Errorstats", "Latencystats", "Cluster", "Keyspace"),
]

# Fields of the default sections that Redis has and that would say nothing here.
LEFT_OUT = {
    *("atomicvar_api", "gcc_version"),
    *("allocator_rss_bytes", "allocator_rss_ratio", "rss_overhead_bytes", "rss_overhead_ratio"),
    *("number_of_cached_scripts", "number_of_functions", "number_of_libraries", "used_memory_functions"),
    *("used_memory_scripts_eval", "used_memory_vm_eval", "used_memory_vm_functions", "used_memory_vm_total"),
    *("used_memory_vm_total_human", "total_eviction_exceeded_time", "current_eviction_exceeded_time"),
    *("expire_cycle_cpu_milliseconds", "total_active_defrag_time", "current_active_defrag_time"),
    *("dump_payload_sanitizations", "reply_buffer_shrinks", "reply_buffer_expands"),
}


def info(client: RawClient, *sections: str) -> str:
    return client.tree("INFO", *sections).text.decode()


def headings(text: str) -> list[str]:
    return [line[2:] for line in text.split("\r\n") if line.startswith("# ")]


# -- sections ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), DEFAULT),
        (("default",), DEFAULT),
        (("all",), ALL),
        (("Everything",), ALL),
        (("keyspace",), ["Keyspace"]),
        (("keyspace", "SERVER", "server"), ["Server", "Keyspace"]),
        (("cpu", "nothing"), ["CPU"]),
        (("nothing",), []),
        (("default", "commandstats"), [name for name in ALL if name != "Latencystats"]),
    ],
)
def test_sections_come_in_order_and_once(client: RawClient, words: tuple[str, ...], expected: list[str]) -> None:
    assert headings(info(client, *words)) == expected


@pytest.mark.parametrize("words", [("keyspace",), ("modules",), ("cluster", "modules"), ("nothing",), ("nothing", "x")])
def test_short_sections_are_those_of_redis(pair: Pair, words: tuple[str, ...]) -> None:
    pair.ask("INFO", *words)


def test_the_keyspace_shows_databases_that_hold_something(pair: Pair) -> None:
    pair.ask("XADD", "a", "1-1", "f", "v")
    pair.ask("XADD", "b", "1-1", "f", "v")
    pair.ask("COPY", "a", "a", "DB", 5)
    assert pair.ask("INFO", "keyspace").endswith(
        b"# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0\r\ndb5:keys=1,expires=0,avg_ttl=0\r\n\r\n"
    )


def test_the_keyspace_counts_deadlines(client: RawClient) -> None:
    client.ask("XADD", "a", "1-1", "f", "v")
    client.ask("EXPIRE", "a", 100)
    assert client.info("keyspace") == {"db0": "keys=1,expires=1,avg_ttl=0"}


def test_info_is_verbatim_text_in_resp3(client: RawClient) -> None:
    client.ask("HELLO", 3)
    assert client.ask("INFO", "cluster") == b"=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n"


def test_every_field_of_redis_is_there_or_left_out_by_name(pair: Pair) -> None:
    ours, theirs = pair.ours.info(), pair.theirs.info()
    missing = {name for name in theirs.keys() - ours.keys() if not name.startswith(("errorstat_", "db"))}
    assert missing == LEFT_OUT


def test_fields_that_redis_does_not_have_are_marked_as_ours(pair: Pair) -> None:
    ours, theirs = pair.ours.info(), pair.theirs.info()
    newer = {
        *("pubsub_clients", "watching_clients", "total_watched_keys", "total_blocking_keys"),
        *(
            "total_blocking_keys_on_nokey",
            "acl_access_denied_auth",
            "acl_access_denied_cmd",
            "acl_access_denied_key",
            "acl_access_denied_channel",
            "client_query_buffer_limit_disconnections",
        ),
        "client_output_buffer_limit_disconnections",
    }
    extra = {name for name in ours.keys() - theirs.keys() if not name.startswith(("riverbed_", "errorstat_", "db"))}
    assert extra == newer


# -- what the fields say -----------------------------------------------------------------------------------------------


def test_the_server_section_names_version_process_and_port(client: RawClient, server: RiverbedServer) -> None:
    found = client.info("server")
    assert found["redis_version"] == "8.8.0"
    assert found["riverbed_version"]
    assert found["riverbed_native"] == "1"
    assert found["riverbed_compiled"] == str(int(IS_COMPILED))
    assert found["redis_mode"] == "standalone"
    assert int(found["process_id"]) == server.pid
    assert int(found["tcp_port"]) == server.port
    assert len(found["run_id"]) == 40
    assert abs(int(found["server_time_usec"]) / 1e6 - time.time()) < 60
    assert 0 <= int(found["uptime_in_seconds"]) < 3600


def test_clients_are_counted(client: RawClient, server: RiverbedServer) -> None:
    def connected() -> int:
        return int(client.info("clients")["connected_clients"])

    until(lambda: connected() == 1, "the end of earlier connections")
    with server.client() as other:
        other.ask("WATCH", "a", "b")
        found = client.info("clients")
    assert found["connected_clients"] == "2"
    assert (found["watching_clients"], found["total_watched_keys"], found["maxclients"]) == ("1", "2", "10000")


def test_a_client_whose_watch_is_broken_watches_nothing_more(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        other.ask("WATCH", "a", "b")
        client.ask("XADD", "b", "*", "f", "v")
        other.ask("WATCH", "c")
        found = client.info("clients")
        assert (found["watching_clients"], found["total_watched_keys"]) == ("0", "0")
        assert other.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] == b"*-1\r\n"


def test_keys_are_counted_whose_deletion_ends_a_wait(client: RawClient, server: RiverbedServer) -> None:
    client.pipeline([("XGROUP", "CREATE", key, "g", "$", "MKSTREAM") for key in "ab"])
    with server.client() as reader, server.client() as alice, server.client() as bob:
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "a", "c", "$", "$")
        alice.send("XREADGROUP", "GROUP", "g", "Alice", "BLOCK", 0, "STREAMS", "a", "b", ">", ">")
        bob.send("XREADGROUP", "GROUP", "g", "Bob", "BLOCK", 0, "STREAMS", "a", ">")
        until_blocked(client, 3)
        found = client.info("clients")
        assert (found["total_blocking_keys"], found["total_blocking_keys_on_nokey"]) == ("3", "2")
        client.ask("DEL", "b")
        alice.reply()
        assert client.info("clients")["total_blocking_keys_on_nokey"] == "1"
        client.ask("DEL", "a")
        bob.reply()
        assert client.info("clients")["total_blocking_keys_on_nokey"] == "0"


def test_changes_since_the_last_save_are_counted(client: RawClient) -> None:
    client.ask("SAVE")
    client.pipeline([("XADD", "a", "*", "f", "v")] * 100)
    assert client.info("persistence")["rdb_changes_since_last_save"] == "100"
    client.ask("SAVE")
    assert client.info("persistence")["rdb_changes_since_last_save"] == "0"


def test_blocked_clients_are_counted(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        other.send("XREAD", "BLOCK", 60_000, "STREAMS", "a", "b", "$", "$")
        until(lambda: client.info("clients")["blocked_clients"] != "0", "a client that waits")
        found = client.info("clients")
    assert (found["blocked_clients"], found["clients_in_timeout_table"], found["total_blocking_keys"]) == (
        "1",
        "1",
        "2",
    )


def test_memory_is_what_the_system_says(client: RawClient, server: RiverbedServer) -> None:
    found = client.info("memory")
    assert abs(int(found["used_memory"]) - server.private_bytes()) < 8 << 20
    assert int(found["used_memory_rss"]) >= int(found["used_memory"])
    assert int(found["used_memory_peak"]) >= int(found["used_memory"])
    assert int(found["total_system_memory"]) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (found["maxmemory"], found["maxmemory_policy"]) == ("0", "noeviction")


def test_the_log_grows_with_writes(client: RawClient, server: RiverbedServer) -> None:
    before = client.info("persistence")
    client.ask("XADD", "a", "*", "f", "v" * 1000)
    after = client.info("persistence")
    assert int(after["aof_current_size"]) > int(before["aof_current_size"]) + 1000
    assert int(after["riverbed_log_offset"]) > int(before["riverbed_log_offset"]) + 1000
    files = [path.read_bytes() for path in server.directory.glob("appendonlydir/*.aof")]
    assert int(after["aof_current_size"]) == sum(len(unpadded(data)) for data in files) < sum(map(len, files))
    assert (after["aof_enabled"], after["aof_last_write_status"], after["riverbed_writes_refused"]) == ("1", "ok", "0")
    assert (after["loading"], after["rdb_last_bgsave_status"]) == ("0", "ok")
    assert client.info("replication")["master_repl_offset"] == after["riverbed_log_offset"]


def test_a_checkpoint_is_told_as_a_save(client: RawClient) -> None:
    client.ask("XADD", "a", "*", "f", "v")
    before = client.info("persistence")
    client.ask("SAVE")
    after = client.info("persistence")
    assert int(after["riverbed_checkpoints"]) > int(before["riverbed_checkpoints"])
    assert abs(int(after["rdb_last_save_time"]) - time.time()) < 60
    assert float(after["riverbed_longest_checkpoint_ms"]) > 0
    assert int(after["riverbed_fsyncs"]) > 0
    assert int(after["riverbed_lmdb_bytes"]) >= int(after["riverbed_lmdb_used_bytes"]) > 0
    assert (after["riverbed_lmdb_readers"], after["riverbed_lmdb_oldest_reader"]) == ("0", "0")
    assert after["rdb_changes_since_last_save"] == "0"


def test_commands_lookups_and_errors_are_counted(client: RawClient) -> None:
    client.ask("CONFIG", "RESETSTAT")
    client.ask("XADD", "a", "*", "f", "v")
    client.pipeline([("EXISTS", "a")] * 3)
    client.ask("TYPE", "nope")
    client.ask("EXPIRE", "a", "x")
    client.ask("EXPIRE", "a")
    client.ask("OBJECT", "ENCODING", "a")
    stats = client.info("stats")
    assert (stats["keyspace_hits"], stats["keyspace_misses"]) == ("4", "1")
    assert stats["total_error_replies"] == "2"
    assert int(stats["total_commands_processed"]) >= 7
    assert int(stats["total_net_input_bytes"]) > 100
    assert client.info("errorstats") == {"errorstat_ERR": "count=2"}
    commands = client.info("commandstats")
    assert commands["cmdstat_exists"].startswith("calls=3,")
    assert commands["cmdstat_expire"].startswith("calls=1,")
    assert commands["cmdstat_expire"].endswith(",rejected_calls=1,failed_calls=1")
    assert "cmdstat_object|encoding" in commands
    latencies = client.info("latencystats")
    assert latencies["latency_percentiles_usec_exists"].startswith("p50=")
    assert ",p99=" in latencies["latency_percentiles_usec_exists"]
    assert ",p99.9=" in latencies["latency_percentiles_usec_exists"]


def test_rates_follow_the_traffic(client: RawClient) -> None:
    def follow() -> bool:
        client.pipeline([("PING",)] * 500)
        stats = client.info("stats")
        return int(stats["instantaneous_ops_per_sec"]) >= 100 and float(stats["instantaneous_input_kbps"]) > 0

    until(follow, "rates of traffic")


def test_expired_keys_are_counted(client: RawClient) -> None:
    before = int(client.info("stats")["expired_keys"])
    client.ask("XADD", "a", "*", "f", "v")
    client.ask("PEXPIRE", "a", 1)
    time.sleep(0.005)
    client.ask("EXISTS", "a")
    assert int(client.info("stats")["expired_keys"]) == before + 1


def test_the_role_is_master_without_replicas(client: RawClient) -> None:
    found = client.info("replication")
    assert (found["role"], found["connected_slaves"]) == ("master", "0")
    assert len(found["master_replid"]) == 40


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1536, "1.50K"), (1 << 20, "1.00M"), ((1 << 40) * 3, "3.00T")],
)
def test_sizes_are_shortened_as_redis_does(size: int, text: str) -> None:
    assert _human(size) == text


def test_no_field_steers_the_terminal_that_shows_it_or_begins_another(client: RawClient) -> None:
    client.ask("DEBUG", "ERROR", b"E\x1b[2J\rrole:slave\xff x")
    told = client.ask("INFO", "everything")
    assert b"errorstat_E\\x1b[2J\\rrole:slave" in told
    assert told.replace(b"\r\n", b"").decode().isprintable()
