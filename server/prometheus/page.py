"""The metrics page: the server's figures as text for Prometheus, made in slices that no client notices.

    GET /metrics  ->  sampling of streams and groups, then every figure      slices of 2 ms with pauses of 8 ms
    GET /healthz  ->  ok                                                   while the loop turns
                      503, and how far it is                               while a start loads the log

A page of a hundred streams and two hundred groups is 2,000 lines and 20 ms of work.  It is made on the loop, where
nothing changes during a slice; and in slices, so that clients wait for none of them longer than for another client's
command.  (A thread would not help: it holds Python's lock for 5 ms at a time.)  A client that asks while a page is
being made gets that page, so that no number of scrapers takes more than a fifth of the server's time.

`figures.py` has the figures, `http.py` the web server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from riverbed.server.prometheus.figures import Figure, figures
from riverbed.server.prometheus.http import MetricsHttp, UnavailableError
from riverbed.store.databases.sampling import Sample
from riverbed.store.errors import TABLE_DAMAGE

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Control
    from riverbed.server.execution.failures import Failures
    from riverbed.server.replication.role import Replication
    from riverbed.server.tls.tls import Tls

log = logging.getLogger("riverbed")

# How many streams have figures of their own, those with groups first, then the longest; and how many of their groups,
# those with the most pending first.
MAX_STREAMS: Final = 100
MAX_GROUPS: Final = 200
SLICE_S: Final = 0.002
PAUSE_S: Final = 0.008
# Values that become text in one go: half a millisecond.  A histogram has 14 lines a value.
_VALUES: Final = 50
_HISTOGRAMS: Final = 4
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The pages of one server."""

    def __init__(
        self, core: Core, control: Control, replication: Replication, tasks: Tasks, failures: Failures
    ) -> None:
        self._core = core
        self._control = control
        self._replication = replication
        self._tasks = tasks
        self._failures = failures
        self._sample = Sample(core.txn, MAX_STREAMS, MAX_GROUPS)
        self._under_way: asyncio.Task[bytes] | None = None
        pages = {b"/metrics": (_CONTENT_TYPE, self.page), b"/healthz": ("text/plain", self._health)}
        self._http = MetricsHttp(pages, tasks)

    async def listen(self, sockets: Iterable[socket.socket], tls: Tls | None) -> None:
        """Answer at `sockets`, which are bound, with `tls` or in the clear.  Raises OSError."""
        await self._http.listen(sockets, tls)

    def close(self) -> None:
        self._http.close()
        if self._under_way is not None:
            self._under_way.cancel()

    async def _health(self) -> bytes:
        loading = self._core.loading
        if loading is not None:
            raise UnavailableError(f"loading, {loading.step}: {loading.percent:.1f} %")
        return b"ok\n"

    async def page(self) -> bytes:
        """The page as it is now, or the page that is being made for another client."""
        task = self._under_way
        if task is None:
            # the callers that await the task report its errors
            task = self._tasks.start("making the metrics page", self._make(), expected=(Exception,))
            self._under_way = task
            task.add_done_callback(self._made)
        return await asyncio.shield(task)

    def _made(self, task: asyncio.Task[bytes]) -> None:
        self._under_way = None

    async def _make(self) -> bytes:
        pieces: list[bytes] = []
        begun = time.perf_counter()
        for piece in self._pieces():
            pieces.append(piece)
            if time.perf_counter() - begun >= SLICE_S:
                await asyncio.sleep(PAUSE_S)
                begun = time.perf_counter()
        return b"".join(pieces)

    def _pieces(self) -> Iterator[bytes]:
        """The page in pieces, each less than a millisecond of work."""
        if self._core.loading is None:
            try:
                for _ in self._sample.look(self._core.now_ms()):
                    yield b""
            except TABLE_DAMAGE as error:
                log.warning("the metrics page shows streams and groups as they were at the scrape before: %s", error)
                self._failures.damage_met()
        for figure in figures(self._core, self._control, self._replication, self._sample):
            yield from render(figure)


class _Alone(Collector):
    """A registry of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def render(figure: Figure) -> Iterator[bytes]:
    """A figure as text, a few values at a time; nothing when there are none."""
    family, values = figure.family, iter(figure.values)
    size = _HISTOGRAMS if isinstance(family, HistogramMetricFamily) else _VALUES
    is_first = True
    while few := list(islice(values, size)):
        family.samples.clear()
        for value in few:
            family.add_metric(*value)
        text = generate_latest(_Alone(family))
        # help and type stand before the first value only
        yield text if is_first else text.split(b"\n", 2)[2]
        is_first = False
