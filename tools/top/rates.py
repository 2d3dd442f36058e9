"""Rates between two samples of a server, and the rates of earlier samples as sparklines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from riverbed.tools.stream_stat import GroupStat
from riverbed.tools.top.sample import Sample

SPARKS: Final = 8
_BARS: Final = "▁▂▃▄▅▆▇█"

History = deque[float]


@dataclass(frozen=True, slots=True)
class GroupRates:
    """Entries a second that were delivered to a group, and that are no longer pending; None while unknown."""

    delivered: float | None = None
    acked: float | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """All rates are per second; None while unknown: in the first sample, or after a restart."""

    commands: float | None = None
    added: float | None = None
    delivered: float | None = None
    acked: float | None = None
    received_bytes: float | None = None
    sent_bytes: float | None = None
    log_bytes: float | None = None
    streams: dict[tuple[int, bytes], float | None] = field(default_factory=dict)
    groups: dict[tuple[int, bytes, bytes], GroupRates] = field(default_factory=dict)


def rates(before: Sample | None, now: Sample) -> Rates:
    """The rates between two samples.

    `added` is of the whole server if the server reports it; `delivered` and `acked` are sums over the sampled streams.
    """
    if before is None or (seconds := now.moment_s - before.moment_s) <= 0:
        return Rates()
    if before.info.get("run_id") != now.info.get("run_id"):
        return Rates()

    def rise(name: str) -> float | None:
        return _rate(before.number(name), now.number(name), seconds)

    former = {(stream.db, stream.key): stream for stream in before.streams}
    streams: dict[tuple[int, bytes], float | None] = {}
    groups: dict[tuple[int, bytes, bytes], GroupRates] = {}
    for stream in now.streams:
        old = former.get((stream.db, stream.key))
        streams[stream.db, stream.key] = (
            None if old is None else _rate(old.entries_added, stream.entries_added, seconds)
        )
        old_groups = {} if old is None else {group.name: group for group in old.groups}
        for group in stream.groups:
            groups[stream.db, stream.key, group.name] = _group_rates(old_groups.get(group.name), group, seconds)
    return Rates(
        commands=rise("total_commands_processed"),
        added=_added(before, now, seconds, streams),
        delivered=_sum(group.delivered for group in groups.values()),
        acked=_sum(group.acked for group in groups.values()),
        received_bytes=rise("total_net_input_bytes"),
        sent_bytes=rise("total_net_output_bytes"),
        log_bytes=rise("master_repl_offset"),
        streams=streams,
        groups=groups,
    )


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    """The rate of a counter; None if a value is unknown or the counter went down."""
    if before is None or now is None or now < before:
        return None
    return (now - before) / seconds


def _group_rates(before: GroupStat | None, now: GroupStat, seconds: float) -> GroupRates:
    if before is None:
        return GroupRates()
    delivered = _rate(before.entries_read, now.entries_read, seconds)
    if delivered is None:
        return GroupRates()
    return GroupRates(delivered, max(delivered - (now.pending - before.pending) / seconds, 0.0))


def _added(before: Sample, now: Sample, seconds: float, streams: dict[tuple[int, bytes], float | None]) -> float | None:
    """Entries added a second, by the calls of XADD; on a replica, which executes none, by its streams."""
    if now.info.get("role") == "slave":
        return _sum(streams.values())
    return _rate(_appends(before), _appends(now), seconds)


def _appends(sample: Sample) -> float:
    return (sample.part("cmdstat_xadd", "calls") or 0.0) - (sample.part("cmdstat_xadd", "failed_calls") or 0.0)


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None when there are values but none is known."""
    given = list(values)
    known = [value for value in given if value is not None]
    return sum(known) if known or not given else None


class Trends:
    """The latest values by name, for sparklines.  Names that are missing in a round are dropped."""

    def __init__(self) -> None:
        self._histories: dict[object, History] = {}

    def note(self, values: dict[object, float | None]) -> None:
        histories = {}
        for name, value in values.items():
            history = self._histories.get(name)
            if history is None:
                history = deque(maxlen=SPARKS)
            if value is not None:
                history.append(value)
            histories[name] = history
        self._histories = histories

    def sparkline(self, name: object) -> str:
        """As wide as SPARKS, the latest value last."""
        return sparkline(self._histories.get(name, ())).rjust(SPARKS)


def sparkline(values: Iterable[float]) -> str:
    """A bar for each value, in proportion to the highest value; the lowest bar for 0."""
    values = list(values)
    highest = max(values, default=0.0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(int(value / highest * len(_BARS)), len(_BARS) - 1)] for value in values)


def trend_values(sample: Sample, found: Rates) -> dict[object, float | None]:
    """The values of the sparklines, by name."""
    values: dict[object, float | None] = {
        name: getattr(found, name)
        for name in ("commands", "added", "delivered", "acked", "received_bytes", "sent_bytes")
    }
    for stream in sample.streams:
        values[stream.db, stream.key] = found.streams.get((stream.db, stream.key))
        for group in stream.groups:
            values[stream.db, stream.key, group.name] = None if group.lag is None else group.lag + group.pending
    return values
