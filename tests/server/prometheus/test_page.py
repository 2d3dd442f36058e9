from __future__ import annotations

import platform
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from riverbed.server.prometheus.figures import LABEL_BYTES, Figure, figures, label
from riverbed.server.prometheus.http import MAX_CONNECTIONS
from riverbed.server.prometheus.page import MAX_GROUPS, MAX_STREAMS, render
from tests.support.replicas import info
from tests.support.servers import RiverbedServer, StartError, free_port
from tests.support.store.planting import Rows, damage
from tests.support.waiting import until, until_blocked

StartRiverbed = Callable[..., RiverbedServer]


def ask(port: int, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") -> tuple[bytes, bytes]:
    """Head and body of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        data = b""
        while piece := connection.recv(1 << 16):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def scrape(port: int) -> dict[str, Metric]:
    """The metrics by name, checked for what Prometheus demands of them."""
    head, body = ask(port)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in head
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    metrics = list(text_string_to_metric_families(body.decode()))
    assert [name for name, count in Counter(metric.name for metric in metrics).items() if count > 1] == []
    for metric in metrics:
        check(metric)
    return {metric.name: metric for metric in metrics}


def check(metric: Metric) -> None:
    assert metric.name.startswith("riverbed_")
    assert metric.documentation.endswith(".")
    assert metric.samples
    labels = Counter((sample.name, tuple(sorted(sample.labels.items()))) for sample in metric.samples)
    assert max(labels.values()) == 1
    match metric.type:
        case "counter":
            assert all(sample.name == f"{metric.name}_total" and sample.value >= 0 for sample in metric.samples)
        case "gauge":
            assert all(sample.name == metric.name for sample in metric.samples)
            assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
        case "histogram":
            check_histogram(metric)
        case other:
            pytest.fail(f"{metric.name} is {other}")


def check_histogram(metric: Metric) -> None:
    """Buckets rise with their bounds up to +Inf, which has as many as the count."""
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    others: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in metric.samples:
        own = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            series.setdefault(own, []).append((float(sample.labels["le"]), sample.value))
        else:
            others.setdefault(own, {})[sample.name.removeprefix(metric.name)] = sample.value
    assert set(series) == set(others)
    for own, buckets in series.items():
        assert buckets == sorted(buckets)
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), others[own]["_count"])
        assert others[own]["_sum"] >= 0


def value(metrics: dict[str, Metric], name: str, /, **labels: str) -> float:
    metric = metrics[name.removesuffix("_total").removesuffix("_count")]
    (found,) = [sample.value for sample in metric.samples if sample.name == name and sample.labels == labels]
    return found


@pytest.fixture
def watched(start_riverbed: StartRiverbed) -> tuple[RiverbedServer, int]:
    """A server that can be scraped, and where."""
    return start_watched(start_riverbed, {})


def start_watched(start_riverbed: StartRiverbed, options: dict[str, object]) -> tuple[RiverbedServer, int]:
    """A server and its port of metrics; another one is tried when it was taken meanwhile."""
    for _ in range(2):
        port = free_port()
        try:
            return start_riverbed(options={**options, "metrics-port": port}), port
        except StartError as error:
            if "--metrics-port" not in str(error):
                raise
    port = free_port()
    return start_riverbed(options={**options, "metrics-port": port}), port


# -- a scrape ----------------------------------------------------------------------------------------------------------


def test_an_empty_server_has_sound_metrics(watched: tuple[RiverbedServer, int]) -> None:
    metrics = scrape(watched[1])
    assert (
        value(metrics, "riverbed_build_info", version="0.1.0", redis_version="8.8.0", python=platform.python_version())
        == 1
    )
    assert value(metrics, "riverbed_streams_omitted") == 0
    assert "riverbed_stream_entries" not in metrics


def test_figures_are_what_was_done(watched: tuple[RiverbedServer, int]) -> None:
    server, port = watched
    with server.client() as client, server.client() as reader:
        client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 11)])
        client.pipeline([("XADD", f"other{number}", "1-0", "f", "v") for number in range(MAX_STREAMS + 1)])
        for name, count in (("g", 4), ("h", 2), ("i", 0)):
            client.ask("XGROUP", "CREATE", "s", name, "0")
            client.ask("XREADGROUP", "GROUP", name, "alice", "COUNT", count, "STREAMS", "s", ">")
        client.pipeline([("XGROUP", "CREATE", "s", f"idle{number}", "0") for number in range(MAX_GROUPS - 2)])
        client.ask("XACK", "s", "g", "1-0")
        client.ask("XADD", "s", "1-0", "f", "v")
        client.ask("XADD", "s")
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until_blocked(client, 1)
        client.ask("SAVE")
        metrics = scrape(port)
    s = {"db": "0", "stream": "s"}
    assert value(metrics, "riverbed_stream_entries", **s) == 10
    assert value(metrics, "riverbed_stream_added_entries_total", **s) == 10
    assert value(metrics, "riverbed_stream_bytes", **s) > 200
    assert value(metrics, "riverbed_stream_groups", **s) == MAX_GROUPS + 1
    assert value(metrics, "riverbed_streams_omitted") == 2
    # COUNT 0 is all there is
    assert value(metrics, "riverbed_group_pending_entries", **s, group="i") == 10
    assert value(metrics, "riverbed_group_lag_entries", **s, group="i") == 0
    assert value(metrics, "riverbed_group_pending_entries", **s, group="g") == 3
    assert value(metrics, "riverbed_group_lag_entries", **s, group="g") == 6
    assert 0 <= value(metrics, "riverbed_group_oldest_pending_seconds", **s, group="g") < 600
    assert value(metrics, "riverbed_groups_omitted") == 1
    assert value(metrics, "riverbed_commands_total", command="xadd") == MAX_STREAMS + 12
    assert value(metrics, "riverbed_commands_failed_total", command="xadd") == 1
    assert value(metrics, "riverbed_commands_rejected_total", command="xadd") == 1
    assert value(metrics, "riverbed_command_duration_seconds_count", command="xadd") == MAX_STREAMS + 12
    assert value(metrics, "riverbed_error_replies_total", code="ERR") == 2
    assert value(metrics, "riverbed_clients_blocked") == 1
    assert value(metrics, "riverbed_clients_connected") == 2
    assert value(metrics, "riverbed_fsync_duration_seconds_count") > 0
    assert value(metrics, "riverbed_checkpoint_duration_seconds_count") > 0
    assert value(metrics, "riverbed_keys", db="0") == MAX_STREAMS + 2
    assert value(metrics, "riverbed_table_rows", table="entries") == MAX_STREAMS + 11
    assert value(metrics, "riverbed_lmdb_file_bytes") >= value(metrics, "riverbed_lmdb_used_bytes") > 0
    assert value(metrics, "riverbed_lmdb_oldest_reader_transactions") == 0
    assert value(metrics, "riverbed_log_bytes") > value(metrics, "riverbed_replication_offset_bytes") > 300
    assert value(metrics, "riverbed_replicas_connected") == 0
    assert value(metrics, "riverbed_rewrite_in_progress") == value(metrics, "riverbed_snapshot_in_progress") == 0


def test_keys_of_any_bytes_are_labels(watched: tuple[RiverbedServer, int]) -> None:
    server, port = watched
    with server.client() as client:
        for key in (b'\xff\x00"\\\n', "größe".encode(), b"k" * 1000):
            client.ask("XGROUP", "CREATE", key, key, "0", "MKSTREAM")
        client.ask("SAVE")
        streams = {sample.labels["stream"] for sample in scrape(port)["riverbed_stream_groups"].samples}
    assert streams == {'\\xff\\x00"\\\\\\n', "größe", "k" * LABEL_BYTES + "...#3"}


def test_different_keys_have_different_labels_however_long() -> None:
    keys = [b"k" * LABEL_BYTES, b"k" * 300, b"k" * 301, b"k" * LABEL_BYTES + b"...#2", b"\xff" * 300, b"\\xff" * 50]
    assert len({label(key, number) for number, key in enumerate(keys)}) == len(keys)


def test_replicas_are_told_by_what_they_lack(
    watched: tuple[RiverbedServer, int], start_riverbed: StartRiverbed
) -> None:
    server, port = watched
    replica, replica_port = start_watched(start_riverbed, {"replicaof": f"127.0.0.1 {server.port}"})
    with server.client() as client:
        for entry_id in ("1-0", "2-0"):
            client.ask("XADD", "s", entry_id, "f", "v")
            assert client.ask("WAIT", 1, 60_000) == b":1\r\n"
        name = f"127.0.0.1:{replica.port}"
        # a ping of the primary, which comes now and then, has to be confirmed as well
        until(
            lambda: value(scrape(port), "riverbed_replica_lag_bytes", replica=name) == 0, "a replica that lacks nothing"
        )
        metrics = scrape(port)
    assert value(metrics, "riverbed_replicas_connected") == 1
    metrics = scrape(replica_port)
    assert value(metrics, "riverbed_replication_is_replica") == value(metrics, "riverbed_replication_link_up") == 1


def test_scrapes_are_sound_while_everything_changes(watched: tuple[RiverbedServer, int]) -> None:
    server, port = watched
    done = threading.Event()

    def write() -> None:
        with server.client() as client:
            number = 0
            while not done.is_set():
                number += 1
                key = f"k{number % 40}"
                client.pipeline(
                    [
                        ("XADD", key, "*", "f", "v"),
                        ("XGROUP", "CREATE", key, "g", "0"),
                        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">"),
                        ("DEL", f"k{(number + 20) % 40}"),
                        ("RENAME", key, f"k{(number + 7) % 40}"),
                        ("SWAPDB", 0, number % 3),
                        *([("FLUSHALL",)] if number % 100 == 0 else []),
                    ]
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        before = 0.0
        for _ in range(8):
            metrics = scrape(port)
            calls = value(metrics, "riverbed_commands_processed_total")
            assert calls >= before
            before = calls
    finally:
        done.set()
        writer.join()
    assert before > 0


def test_many_who_ask_at_once_are_answered_alike(watched: tuple[RiverbedServer, int]) -> None:
    _, port = watched
    connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(MAX_CONNECTIONS)]
    for connection in connections:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    for connection in connections:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()


def test_there_is_no_port_unless_asked_for(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        assert client.ask("CONFIG", "GET", "metrics-port") == b"*2\r\n$12\r\nmetrics-port\r\n$1\r\n0\r\n"
    assert "metrics on port" not in riverbed.log_text()


def test_a_port_in_use_is_told_by_its_setting(watched: tuple[RiverbedServer, int], tmp_path: Path) -> None:
    flags = ["--port", free_port(), "--metrics-port", watched[1], "--bind", "127.0.0.1", "--dir", tmp_path / "other"]
    done = subprocess.run(
        [sys.executable, "-m", "riverbed.server.main", *map(str, flags)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"port {watched[1]} is in use; stop the program that listens there, or choose another --metrics-port" in (
        done.stdout.decode()
    )


# What the help of a metric begins with, by the end of its name; a count says what is counted, a state when it is 1.
_HELP_BEGINS = {"seconds": r"(Seconds|Unix time in seconds) ", "bytes": r"Bytes ", "ratio": r"Part .*, from 0 to 1\.$"}
_COUNT_OR_STATE = r"([A-Z][a-z]+s,? |1 (while|when|unless) )"
_NEEDS_ANOTHER = re.compile(r"_|\b(same|above|below|former|latter|others?|of them)\b")
_SAID_AS = {"db": "database"}


def test_each_help_is_a_sentence_of_its_own_with_its_unit(
    watched: tuple[RiverbedServer, int], start_riverbed: StartRiverbed
) -> None:
    server, port = watched
    _, replica_port = start_watched(start_riverbed, {"replicaof": f"127.0.0.1 {server.port}"})
    with server.client() as client:
        client.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        client.ask("XADD", "s", "1-0", "f", "v")
        client.ask("XREADGROUP", "GROUP", "g", "alice", "STREAMS", "s", ">")
        client.ask("XADD", "s")
        client.ask("PEXPIREAT", "s", 1 << 42)
        assert client.ask("WAIT", 1, 60_000) == b":1\r\n"
    loading: Any = SimpleNamespace(loading=SimpleNamespace(loaded_bytes=1, total_bytes=2))
    nothing: Any = None
    start = {figure.family.name: figure.family for figure in figures(loading, nothing, nothing, nothing)}
    metrics: dict[str, Metric] = {**scrape(port), **scrape(replica_port), **start}
    assert metrics.keys() >= {
        "riverbed_loading_total_bytes",
        "riverbed_replication_link_up",
        "riverbed_replica_heard_seconds",
        "riverbed_group_oldest_pending_seconds",
        "riverbed_error_replies",
    }
    for metric in metrics.values():
        text = metric.documentation
        begin = _HELP_BEGINS.get(metric.name.rpartition("_")[2], _COUNT_OR_STATE)
        assert re.match(begin, text), f"{metric.name}: {text}"
        assert text.endswith(".") and ". " not in text, f"{metric.name}: {text}"
        assert not _NEEDS_ANOTHER.search(text), f"{metric.name}: {text}"
        names = [name for sample in metric.samples[:1] for name in sample.labels if name != "le"]
        said = [_SAID_AS.get(name, name) for name in names]
        assert not said or any(name in text.lower() for name in said), f"{metric.name} of {said}: {text}"


# -- text --------------------------------------------------------------------------------------------------------------


def test_a_figure_of_many_values_has_one_head() -> None:
    family = GaugeMetricFamily("riverbed_x", "Help.", labels=("n",))
    text = b"".join(render(Figure(family, (((str(number),), number) for number in range(333)))))
    assert text.count(b"# HELP riverbed_x Help.\n# TYPE riverbed_x gauge\n") == text.count(b"#") // 2 == 1
    (metric,) = text_string_to_metric_families(text.decode())
    assert [sample.value for sample in metric.samples] == list(range(333))


def test_a_figure_without_values_is_left_out() -> None:
    assert list(render(Figure(GaugeMetricFamily("riverbed_x", "Help.", labels=("n",)), []))) == []


def test_a_damaged_row_is_mended_and_costs_no_page(start_riverbed: StartRiverbed) -> None:
    server, port = start_watched(start_riverbed, {"scrub-interval": 0})
    with server.client() as client:
        for key in ("a", "b", "c"):
            client.ask("XADD", key, "1-1", "f", "v")
    server.stop()
    damage(server.directory, change_a_bit_of_the_second_key)
    server.start()
    scrape(port)
    until(lambda: info(server, "persistence")["riverbed_repairs"] == "1", "the repair")
    assert value(scrape(port), "riverbed_stream_entries", db="0", stream="b") == 1


def change_a_bit_of_the_second_key(rows: Rows) -> None:
    row = rows.all("keys")[1][1]
    rows.change("keys", row[:-1] + bytes((row[-1] ^ 4,)), 1)
