"""`riverbed top HOST:PORT`: a server's rates, streams and groups, live.

This module takes a sample at each interval and passes it on.  `tools/top/sample.py` reads the server,
`tools/top/rates.py` computes rates from two samples, and `tools/top/view.py` shows them.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Final, Self

import click
from rich.console import RenderableType
from rich.live import Live

from riverbed.server.glob import Glob
from riverbed.tools.console.console import Failure, Seconds, results
from riverbed.tools.console.keytext import key_bytes
from riverbed.tools.live.redisclient import Address, RedisClient, ReplyError
from riverbed.tools.live.target import server_address
from riverbed.tools.live.tls import TlsOptions, tls_options
from riverbed.tools.top.keys import keyboard
from riverbed.tools.top.rates import Rates, Trends, rates, trend_values
from riverbed.tools.top.sample import Sample, Sampler
from riverbed.tools.top.view import ORDERS, as_json, screen

_TIMEOUT_S: Final = 10.0

# Shows a sample, or why there is none.
Show = Callable[["Sample | None", Rates, str], None]


@click.command()
@click.argument("target", metavar="HOST:PORT")
@click.option("--interval", type=Seconds(), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--count", type=click.IntRange(min=0), default=0, metavar="N", help="End after N samples.")
@click.option("--sort", "order", type=click.Choice(ORDERS), default="length", show_default=True)
@click.option("--match", "pattern", metavar="PATTERN", help="Only streams with keys like this, as in KEYS: orders:*")
@click.option(
    "--streams",
    "most",
    type=click.IntRange(0, 1000),
    default=100,
    show_default=True,
    metavar="N",
    help="Look at no more than the N longest found.",
)
@click.option("--json", "as_lines", is_flag=True, help="An object of JSON a line, one for each sample.")
@tls_options
def top(
    target: str,
    interval: float,
    count: int,
    order: str,
    pattern: str | None,
    most: int,
    as_lines: bool,
    tls: TlsOptions,
) -> None:
    """Watch a running server live.

    Rates, memory, clients, fsyncs and checkpoints, the streams and their groups, a screen of them every two seconds.

    HOST:PORT is a Riverbed, or a Redis as far as that reports the figures; with a user or a database it is
    redis://[user@]host:port[/database]. `riverbed stat --help` says where its password comes from. q or Ctrl-C ends.
    Where the output is no terminal, samples are printed one after the other.

    "read/s" and "ack/s" are entries that a group was given and is done with, "behind" is the trend of what it has
    pending and still to be given. "oldest" is the time since the last delivery of the pending entry that has
    waited longest, and "tries" is how often the most delivered one was delivered: `riverbed stat --help` says of which
    entries. A server with very many streams is asked for a thousand lengths at a time, so that it may take a while
    until the longest are found.

    \b
    Examples
      riverbed top localhost:6379
      riverbed top redis://watcher@db1:6379 --sort lag --interval 1
      riverbed top :6379 --json --count 2 | tail -1 | jq .commands_per_second

    Exit status 0: ended by you, or after N samples, 2: the server could not be watched.
    """
    address = server_address(target, tls)
    if address is None:
        raise Failure(f"{target} is not a server: expected HOST:PORT or redis://...")
    is_wanted = (lambda key: True) if pattern is None else Glob(key_bytes(pattern)).matches
    watch = _Watch(address, Sampler(most, is_wanted))
    with contextlib.suppress(KeyboardInterrupt), watch:
        watch.connect()
        if as_lines:
            watch.run(interval, count, lambda sample, found, trouble: _print(address, sample, found, trouble, order))
        else:
            _run_screen(watch, interval, count, order)


def _print(address: Address, sample: Sample | None, found: Rates, trouble: str, order: str) -> None:
    if sample is None or trouble:
        sampled = {"time_ms": time.time_ns() // 1_000_000, "address": str(address), "error": trouble}
    else:
        sampled = as_json(str(address), sample, found, order)
    click.echo(json.dumps(sampled))


def _run_screen(watch: _Watch, interval: float, count: int, order: str) -> None:
    console = results(soft_wrap=False)
    trends = Trends()

    def draw(sample: Sample | None, found: Rates, trouble: str) -> RenderableType:
        assert sample is not None, "the first sample has failed, which ends all"
        if not trouble:
            trends.note(trend_values(sample, found))
        return screen(console, str(watch.address), sample, found, trends, order, trouble)

    if not console.is_terminal or console.is_dumb_terminal:

        def print_out(sample: Sample | None, found: Rates, trouble: str) -> None:
            console.print(draw(sample, found, trouble), "")
            sys.stdout.flush()

        watch.run(interval, count, print_out)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        watch.run(interval, count, lambda *facts: live.update(draw(*facts), refresh=True))


class _Watch:
    """Takes a sample at each interval, and connects again when the connection is lost."""

    def __init__(self, address: Address, sampler: Sampler) -> None:
        self.address = address
        self._sampler = sampler
        self._client: RedisClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def connect(self) -> RedisClient:
        """The connection, made if there is none.  Raises Failure."""
        if self._client is None:
            self._client = RedisClient(self.address, _TIMEOUT_S)
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _take(self) -> Sample:
        """Raises Failure, ReplyError."""
        client = self.connect()
        try:
            return self._sampler.take(client)
        except Exception as error:
            client.judge(error)
            raise

    def run(self, interval: float, count: int, show: Show) -> None:
        """Take samples until q is pressed, or until `count` of them if it is not 0.

        Raises Failure when the first sample fails.
        """
        last: Sample | None = None
        found = Rates()
        taken = 0
        with keyboard() as keys:
            while True:
                begun = time.monotonic()
                trouble = ""
                try:
                    sample = self._take()
                except (Failure, ReplyError) as error:
                    self._disconnect()
                    if last is None:
                        raise (
                            error if isinstance(error, Failure) else Failure(f"{self.address} refuses: {error}")
                        ) from error
                    trouble = f"{error}; trying again"
                else:
                    found = rates(last, sample)
                    last = sample
                    taken += 1
                show(last, found, trouble)
                if taken == count > 0:
                    return
                if keys.wait(max(interval - (time.monotonic() - begun), 0.05)):
                    return
