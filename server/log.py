"""The server's own log: lines for people, about starts, stops, and what went wrong.

    2026-03-01 12:00:00.123 # The disk is nearly full: refusing writes
    time in the zone of the machine, the level as one character (`. - * #`: debug, verbose, notice, warning), the text

Modules write to `logging.getLogger("riverbed")`, with `info` for notice and `log(VERBOSE, ...)` for verbose.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import time
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from riverbed.server.config.config import Config

ROOT: Final = "riverbed"
VERBOSE: Final = 15
NOTICE: Final = logging.INFO

LEVELS: Final = {"debug": logging.DEBUG, "verbose": VERBOSE, "notice": NOTICE, "warning": logging.WARNING}


# Control characters, which a terminal that shows the log would obey.
CONTROL: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        # one line a message, whatever a client or a file name put into it; a traceback is indented
        text = text.replace("\n", "\n    ").translate(CONTROL)
        return f"{moment}.{int(record.msecs):03d} {_mark(record.levelno)} {text}"


def _mark(level: int) -> str:
    if level >= logging.WARNING:
        return "#"
    if level >= NOTICE:
        return "*"
    return "-" if level >= VERBOSE else "."


def _tell_instead(line: str, error: OSError) -> None:
    """Write a line that the log does not take to standard error, which may be closed, or none."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{line} (not in the log: {error})\n")
        sys.stderr.flush()


class _LogOutput(logging.StreamHandler[TextIO]):
    """Writes lines to standard output; one that it does not take goes to standard error, as in `_to_file`."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        try:
            self.stream.write(f"{line}\n")
            self.stream.flush()
        except OSError as error:
            _tell_instead(line, error)


def _to_file(path: str) -> logging.Handler:
    """Appends lines to a file, which is opened again when something moved it away: log rotation needs no signal.

    A line that cannot be written goes to standard error, and never to the code that logs it.
    """
    from logging.handlers import WatchedFileHandler

    class LogFile(WatchedFileHandler):
        def emit(self, record: logging.LogRecord) -> None:
            line = self.format(record)
            try:
                self.reopenIfNeeded()
                self.stream = self.stream or self._open()
                self.stream.write(f"{line}\n")
                self.stream.flush()
            except OSError as error:
                _tell_instead(line, error)

    return LogFile(path, encoding="utf-8", errors="backslashreplace")


def open_log(config: Config) -> None:
    """Send log lines to `logfile`, or standard output, as `loglevel` says, now and after each change of it.

    Raises OSError when the file cannot be appended to.
    """
    handler: logging.Handler
    if config.logfile:
        handler = _to_file(config.logfile)
    elif (output := sys.stdout or sys.stderr) is not None:
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")  # file names need not be text
        handler = _LogOutput(output)
    else:
        handler = logging.NullHandler()  # the server was started with both closed
    handler.setFormatter(_LineFormatter())
    root = logging.getLogger(ROOT)
    root.propagate = False
    for former in root.handlers[:]:
        root.removeHandler(former)
        former.close()
    root.addHandler(handler)

    def set_level() -> None:
        root.setLevel(LEVELS[config.loglevel])

    set_level()
    config.observe("loglevel", set_level)
