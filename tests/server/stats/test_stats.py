from __future__ import annotations

from riverbed.server.stats.stats import (
    LATENCY_SAMPLES,
    CommandCounters,
    LatencyMonitor,
    MixCounters,
    Slowlog,
    Stats,
    shortened,
)


def add(slowlog: Slowlog, *words: bytes, max_length: int = 128) -> None:
    slowlog.add(shortened(list(words)), 5, 1000, b"1.2.3.4:5", b"name", max_length)


# -- counters ----------------------------------------------------------------------------------------------------------


def test_durations_are_counted_in_doubling_buckets() -> None:
    counters = CommandCounters()
    for microseconds in (0, 1, 2, 3, 4, 1000):
        counters.record(microseconds * 1000 + 999)
    assert list(counters.histogram()) == [(1, 1), (2, 2), (4, 4), (8, 5), (1024, 6)]
    assert (counters.calls, counters.usec) == (6, 1015)


def test_a_run_of_calls_counts_as_equal_ones() -> None:
    counters = CommandCounters()
    counters.record_run(10, 30_000)
    assert (counters.calls, counters.usec, list(counters.histogram())) == (10, 30, [(4, 10)])


def test_percentiles_are_upper_bounds() -> None:
    counters = CommandCounters()
    assert counters.percentile_usec(99) == 0
    counters.record_run(99, 99 * 1000)
    counters.record(1_000_000)
    assert counters.percentile_usec(50) == 2
    assert counters.percentile_usec(99) == 2
    assert counters.percentile_usec(99.9) == 1024


def test_calls_of_two_commands_that_were_timed_together_are_counted_apart() -> None:
    adds, acks = CommandCounters(), CommandCounters()
    counters = MixCounters(adds, acks)
    counters.others += 3
    counters.record_run(4, 4000)
    counters.record_run(2, 500)
    counters.others += 1
    counters.record_run(1, 70)
    assert (adds.calls, adds.nanoseconds, acks.calls, acks.nanoseconds) == (3, 1500, 4, 3070)


def test_a_reset_clears_the_counters_that_others_hold() -> None:
    stats = Stats()
    counters = stats.counters(b"xadd")
    counters.record(1000)
    stats.commands_processed += 1
    stats.reset()
    assert stats.counters(b"xadd") is counters
    assert (counters.calls, stats.commands_processed, stats.seen_commands()) == (0, 0, [])


def test_only_commands_that_were_called_or_rejected_are_seen() -> None:
    stats = Stats()
    stats.counters(b"xlen")
    stats.counters(b"xdel").rejected += 1
    stats.counters(b"xadd").record(1)
    assert [name for name, _ in stats.seen_commands()] == [b"xadd", b"xdel"]


def test_errors_are_counted_by_code_up_to_a_limit() -> None:
    stats = Stats()
    stats.count_error(b"ERR syntax error")
    stats.count_error(b"ERR other")
    for number in range(200):
        stats.count_error(b"CODE%d text" % number)
    assert stats.error_replies == 202
    assert stats.errors[b"ERR"] == 2
    assert len(stats.errors) == 129
    assert stats.errors[b"OTHER"] == 200 - 127


# -- the slow log ------------------------------------------------------------------------------------------------------


def test_the_slow_log_keeps_the_latest_and_numbers_all() -> None:
    slowlog = Slowlog()
    for number in range(5):
        add(slowlog, b"PING", b"%d" % number, max_length=3)
    assert [(call.id, call.words[1]) for call in slowlog.calls] == [(4, b"4"), (3, b"3"), (2, b"2")]
    slowlog.calls.clear()
    add(slowlog, b"PING")
    assert slowlog.calls[0].id == 5


def test_the_slow_log_shortens_words_and_says_by_how_much() -> None:
    slowlog = Slowlog()
    add(slowlog, b"a" * 128, b"b" * 129)
    assert slowlog.calls[0].words == [b"a" * 128, b"b" * 128 + b"... (1 more bytes)"]


def test_the_slow_log_keeps_32_words_the_last_of_which_tells_how_many_are_missing() -> None:
    slowlog = Slowlog()
    add(slowlog, *[b"w"] * 32)
    add(slowlog, *[b"w"] * 33)
    assert slowlog.calls[1].words == [b"w"] * 32
    assert slowlog.calls[0].words == [b"w"] * 31 + [b"... (2 more arguments)"]


# -- latency -----------------------------------------------------------------------------------------------------------


def test_spikes_below_the_threshold_or_without_one_are_not_kept() -> None:
    monitor = LatencyMonitor()
    monitor.add(b"command", 1000, 50, 0)
    monitor.add(b"command", 1000, 50, 51)
    assert monitor.events == {}
    monitor.add(b"command", 1000, 50, 50)
    assert list(monitor.events[b"command"].samples) == [(1000, 50)]


def test_one_second_has_one_spike_the_highest() -> None:
    monitor = LatencyMonitor()
    for second, ms in ((1, 5), (1, 9), (1, 7), (2, 3)):
        monitor.add(b"command", second, ms, 1)
    event = monitor.events[b"command"]
    assert (list(event.samples), event.max_ms) == ([(1, 9), (2, 3)], 9)


def test_old_spikes_are_forgotten_but_not_the_highest() -> None:
    monitor = LatencyMonitor()
    monitor.add(b"command", 0, 99, 1)
    for second in range(1, LATENCY_SAMPLES + 1):
        monitor.add(b"command", second, 5, 1)
    event = monitor.events[b"command"]
    assert (len(event.samples), event.samples[0][0], event.max_ms) == (LATENCY_SAMPLES, 1, 99)


def test_a_latency_reset_counts_what_it_forgets() -> None:
    monitor = LatencyMonitor()
    for event in (b"command", b"fsync", b"tick"):
        monitor.add(event, 1, 5, 1)
    assert monitor.reset([b"fsync", b"nothing"]) == 1
    assert monitor.reset([]) == 2
    assert monitor.reset([]) == 0


# -- rates -------------------------------------------------------------------------------------------------------------


def test_rates_are_averages_over_the_latest_samples() -> None:
    stats = Stats()
    stats.sample(10.0)
    assert stats.operations.per_second == 0
    stats.commands_processed += 100
    stats.bytes_in += 5000
    stats.sample(10.1)
    assert round(stats.operations.per_second) == 1000
    assert round(stats.input_bytes.per_second) == 50_000
    stats.sample(10.2)
    assert round(stats.operations.per_second) == 500
    for number in range(16):
        stats.sample(10.3 + number / 10)
    assert stats.operations.per_second == 0


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    stats = Stats()
    stats.sample(1.0)
    stats.commands_processed += 5
    stats.sample(1.0)
    assert stats.operations.per_second == 0


def test_sampling_notes_the_memory_peak() -> None:
    stats = Stats()
    stats.sample(1.0)
    assert stats.peak_memory > 1 << 20


def test_durations_know_the_last_the_longest_and_the_average() -> None:
    durations = Stats().fsync
    assert durations.average_s == 0
    for seconds in (0.003, 0.009, 0.0):
        durations.record(seconds)
    assert (durations.count, durations.last_s, durations.longest_s) == (3, 0.0, 0.009)
    assert round(durations.average_s, 6) == 0.004
    assert (durations.buckets[0], durations.buckets[12], durations.buckets[14]) == (1, 1, 1)


def test_a_duration_that_a_clock_set_back_made_negative_is_none() -> None:
    durations = Stats().tick
    durations.record(-3600.0)
    assert (durations.count, durations.buckets[0], durations.longest_s) == (1, 1, 0.0)


def test_a_reset_clears_durations_in_place() -> None:
    stats = Stats()
    record = stats.checkpoint.record
    record(1.0)
    stats.reset()
    record(2.0)
    assert (stats.checkpoint.count, stats.checkpoint.longest_s) == (1, 2.0)
