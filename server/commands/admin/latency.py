"""LATENCY: when the server stalled and for how long, and histograms of how long the calls of each command took.

Spikes and histograms are kept in `server.stats.stats`; nothing here measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.protocol.replies import Verbatim

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.stats.stats import CommandCounters

_FLAGS: Final = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
_TIPS: Final = ("nondeterministic_output", "request_policy:all_nodes", "response_policy:special")


container("LATENCY", group="server", since="2.8.13", summary="Container of the latency monitor's commands.")


@command("LATENCY DOCTOR", _FLAGS, summary="Reports on latency spikes in words.", tips=_TIPS)
def latency_doctor(request: Request) -> Verbatim:
    """LATENCY DOCTOR -> text: for each kind of spike how many, how high, how often."""
    context = request.context
    if not context.config.latency_monitor_threshold:
        return Verbatim(
            b"The latency monitor is off.  CONFIG SET latency-monitor-threshold MILLISECONDS turns it on; "
            b"INFO shows the longest tick, checkpoint and fsync in any case.\n"
        )
    events = context.stats.latency.events
    if not events:
        return Verbatim(b"No latency spike was seen.\n")
    lines = []
    now = request.now_ms // 1000
    for name, event in sorted(events.items()):
        heights = [ms for _, ms in event.samples]
        average = sum(heights) // len(heights)
        deviation = sum(abs(ms - average) for ms in heights) // len(heights)
        period = (now - event.samples[0][0]) / len(heights)
        lines.append(
            b"%b: %d spikes, average %d ms, mean deviation %d ms, one every %.1f s, highest ever %d ms.\n"
            % (name, len(heights), average, deviation, period, event.max_ms)
        )
    lines.append(b"SLOWLOG GET names the commands; CONFIG GET appendfsync shows how often the disk is waited for.\n")
    return Verbatim(b"".join(lines))


declare_help(
    "LATENCY",
    "DOCTOR",
    "    Return a human readable latency analysis report.",
    "HISTORY <event>",
    "    Return time-latency samples for the <event> class.",
    "LATEST",
    "    Return the latest latency samples for all events.",
    "RESET [<event> ...]",
    "    Reset latency data of one or more <event> classes.",
    "    (default: reset all data for all event classes)",
    "HISTOGRAM [COMMAND ...]",
    "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
    "    If no commands are specified then all histograms are replied.",
    since="2.8.13",
)


@command(
    "LATENCY HISTOGRAM [command [command ...]]",
    _FLAGS,
    since="7.0.0",
    summary="Returns how long the calls of commands took.",
    tips=_TIPS,
)
def latency_histogram(request: Request) -> dict[bytes, Reply]:
    """LATENCY HISTOGRAM [command ...] -> command to calls and histogram_usec, microseconds to calls within them.

    A container stands for all its subcommands.  Commands that were not called, or do not exist, are left out.
    """
    wanted = {name.lower() for name in request.argv[2:]}

    def is_wanted(name: bytes) -> bool:
        return not wanted or name in wanted or name.partition(b"|")[0] in wanted

    def histogram(counters: CommandCounters) -> dict[bytes, Reply]:
        return {b"calls": counters.calls, b"histogram_usec": dict(counters.histogram())}

    seen = request.context.stats.seen_commands()
    return {name: histogram(counters) for name, counters in seen if counters.calls and is_wanted(name)}


@command("LATENCY HISTORY event", _FLAGS, summary="Lists the latest spikes of one kind.", tips=_TIPS)
def latency_history(request: Request) -> list[Reply]:
    """LATENCY HISTORY event -> oldest first: unix seconds, milliseconds.  Nothing for an unknown event."""
    event = request.context.stats.latency.events.get(request.argv[2])
    return [] if event is None else [list(sample) for sample in event.samples]


@command("LATENCY LATEST", _FLAGS, summary="Lists the latest spike of each kind.", tips=_TIPS)
def latency_latest(request: Request) -> list[Reply]:
    """LATENCY LATEST -> event, unix seconds and milliseconds of its latest spike, the highest ever."""
    events = request.context.stats.latency.events
    return [[name, *event.samples[-1], event.max_ms] for name, event in sorted(events.items())]


@command(
    "LATENCY RESET [event [event ...]]",
    _FLAGS,
    summary="Forgets spikes.",
    tips=("request_policy:all_nodes", "response_policy:all_succeeded"),
)
def latency_reset(request: Request) -> int:
    """LATENCY RESET [event ...] -> how many kinds were forgotten."""
    return request.context.stats.latency.reset(request.argv[2:])
