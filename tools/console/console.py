"""Messages of every subcommand, and how it ends: exit statuses, errors, numbers, a bar for long work.

Results go to standard output, where other programs read them.  Messages for users go to standard error: in colour and
with a bar on a terminal, else as plain lines.  NO_COLOR is honoured.

Text from outside, such as a file name or a server's answer, passes through `keytext.shown`: it may hold anything.
This module reads no data.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final, Self

import click
import lmdb
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from riverbed.store.errors import DamagedRowError, LockedError, StoreError
from riverbed.tools.console.keytext import shown
from riverbed.tools.console.outputs import FAILED, interrupted_status

# The exit status of a command that did its work and found something wrong; the others are in `outputs.py`.
FOUND: Final = 1

_REDRAW_S: Final = 0.1
_AGE = re.compile(r"(\d{1,9})(ms|[smhdw])", re.ASCII)
_SIZE = re.compile(r"([1-9]\d{0,5})(mb|gb)", re.ASCII)
_UNITS_BITS: Final = {"mb": 20, "gb": 30}
_LOGIN = re.compile(r"(\w:/{1,2})(?:(?!\w:/).)*@")  # a path has one of the slashes
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS: Final = ("KB", "MB", "GB", "TB", "PB")


class _Console(Console):
    """A console that leaves a broken pipe to `outputs.guarded`; `:key:` in a name is no emoji."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def notes() -> Console:
    """Standard error, for messages.  Escape text from outside: `[x]` is markup."""
    return _Console(stderr=True, emoji=False, highlight=False, soft_wrap=True)


def results(*, soft_wrap: bool = True) -> Console:
    """Standard output, for readable results.  Without `soft_wrap` lines end at the terminal's width."""
    return _Console(emoji=False, highlight=False, soft_wrap=soft_wrap)


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print one line for each fact, with its name in front.  The texts are markup."""
    for name, text in facts.items():
        console.print(f"  [dim]{name:<10}[/]{text}")


class Failure(click.ClickException):
    """The command cannot do its work: one line that says why and what to do, and exit status 2.

    A URL of a server may stand where a path belongs, or be mistyped; its user and password are never shown.
    """

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(_LOGIN.sub(r"\1(redacted)@", message))

    def show(self, file: IO[Any] | None = None) -> None:
        notes().print(f"[bold red]riverbed:[/] {escape(shown(self.message))}")


class Interrupted(Failure):
    """Ctrl-C, or another signal that ends a command."""

    def __init__(self, message: str, error: KeyboardInterrupt) -> None:
        super().__init__(f"interrupted: {message}")
        self.exit_code = interrupted_status(error)  # type: ignore[misc]  # click takes it of the error itself


@contextlib.contextmanager
def failures_explained(what: str) -> Iterator[None]:
    """Turn expected errors of the store and the system into `Failure`: "cannot `what`: reason"."""
    try:
        yield
    except LockedError as error:
        raise Failure(f"cannot {what}: {error}; stop its server first") from error
    except DamagedRowError as error:
        cure = "`riverbed check DIR --repair`, with its server stopped, makes the tables again of the log"
        raise Failure(f"cannot {what}: {error}; {cure}") from error
    except StoreError as error:
        raise Failure(f"cannot {what}: {error}") from error
    except BrokenPipeError:  # of standard output; errors of connections are a Failure already
        raise
    except OSError as error:
        raise Failure(f"cannot {what}: {explain(error)}") from error
    except lmdb.Error as error:
        raise Failure(f"cannot {what}: LMDB says {error}{_lmdb_advice(error)}") from error
    except KeyboardInterrupt as error:
        raise Interrupted(f"did not {what}", error) from None


def _lmdb_advice(error: lmdb.Error) -> str:
    """An explanation of LMDB's error for users who do not know LMDB."""
    reason = str(error)
    if reason.endswith(os.strerror(errno.EACCES)):
        return " (while a server runs, readers need to write its lock.mdb: be the user whom the files belong to)"
    if reason.endswith(os.strerror(errno.EIO)):
        return " (a full disk gives this error, too)"
    return ""


def explain(error: OSError) -> str:
    """The system's error text, after the name of the file if there is one."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error.filename, (str, bytes, os.PathLike)):
        return f"{os.fsdecode(error.filename)}: {reason}"
    return reason


class Seconds(click.FloatRange):
    """A time to wait: at least a tenth of a second, at most a day."""

    def __init__(self) -> None:
        super().__init__(min=0.1, max=86_400)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # a range check lets NaN pass
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


class Age(click.ParamType[int]):
    """`500ms`, `90s`, `30m`, `12h`, `7d`, `2w` as milliseconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _AGE.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not a time such as 90s, 30m, 12h, 7d or 2w", param, ctx)
        return int(found[1]) * _UNITS_MS[found[2]]


class Size(click.ParamType[int]):
    """`500mb`, `2gb` and the like as bytes, powers of 1024 as in the server's configuration."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(str(value).lower())
        if found is None:
            self.fail(f"{value!r} is not a size such as 500mb or 2gb", param, ctx)
        return int(found[1]) << _UNITS_BITS[found[2]]


# -- numbers -----------------------------------------------------------------------------------------------------------


def size_text(byte_count: float) -> str:
    """`1.5 MB`; powers of 1000, at least two significant digits."""
    if byte_count < 1000:
        return f"{byte_count:.0f} bytes"
    for unit in _UNITS:
        byte_count /= 1000
        if byte_count < 999.5 or unit == _UNITS[-1]:
            break
    return f"{byte_count:.1f} {unit}" if byte_count < 99.95 else f"{byte_count:.0f} {unit}"


def counted(count: int, noun: str) -> str:
    """`1 entry`, `1,200 entries`."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
    return f"{count:,} {plural}"


def seconds_text(seconds: float) -> str:
    """`0.42 s`, `12.3 s`, `4 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def age_text(ms: int) -> str:
    """A short form of an age: `0.4 s`, `12 s`, `3.5 min`, `12 h`, `40 d`."""
    count, unit = ms / 1000, "s"
    for limit, following, name in ((60, 60, "min"), (60, 60, "h"), (48, 24, "d")):
        if count < limit - 0.5:
            break
        count, unit = count / following, name
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:,.0f} {unit}"


# -- long work ---------------------------------------------------------------------------------------------------------


class ProgressBar:
    """The progress of long work: bytes of `total_bytes`, items a second, the time that is left.

    `advance` costs about a microsecond, so that loops may call it for every batch.  Nothing is shown unless standard
    error is a terminal.  `total_bytes` is None if the end is not known.  With `total_items` the bar counts items and
    shows no bytes.  With an empty `items` it shows no items.
    """

    def __init__(
        self,
        what: str,
        total_bytes: int | None = None,
        items: str = "entries",
        *,
        total_items: int | None = None,
    ) -> None:
        console = notes()
        self.done_bytes = 0
        self.done_items = 0
        self._total_bytes = total_bytes
        self._items = items
        self._total_items = total_items
        self._begun = self._drawn = time.monotonic()
        # `advance` redraws the bar, not a thread: a thread would take time from the loop.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[numbers]}", style="progress.download"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            auto_refresh=False,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(escape(what), total=total_items or total_bytes, numbers="")

    def __enter__(self) -> Self:
        self._progress.start()
        self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def seconds(self) -> float:
        """The time since the bar was made."""
        return time.monotonic() - self._begun

    def describe(self, what: str) -> None:
        """Change the description of the work."""
        self._progress.update(self._task, description=escape(what))
        self._draw()

    def advance(self, byte_count: int, items: int = 0) -> None:
        """`byte_count` more bytes and `items` more items are done."""
        self.done_bytes += byte_count
        self.done_items += items
        if time.monotonic() - self._drawn >= _REDRAW_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._progress.disable:
            return
        seconds = max(self.seconds, 0.001)
        rate = f"{self.done_items / seconds:,.0f} {self._items}/s" if self._items else ""
        if self._total_items is not None:
            done, numbers = self.done_items, f"{self.done_items:,} of {self._total_items:,}"
        else:
            done, numbers = self.done_bytes, size_text(self.done_bytes)
            numbers += "" if self._total_bytes is None else f" of {size_text(self._total_bytes)}"
            rate = rate or f"{size_text(self.done_bytes / seconds)}/s"
        if not self.done_items and not self.done_bytes and self._total_bytes is None and self._total_items is None:
            self._progress.update(self._task, numbers=seconds_text(seconds))
            self._progress.refresh()
            return
        self._progress.update(self._task, completed=done, numbers=f"{numbers}, {rate}")
        self._progress.refresh()
