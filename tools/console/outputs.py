"""Standard output and standard error as they may be, and the exit statuses of commands that do not get to their end.

Takes no time to import: it is there before anything else, so that nothing is left to end a command with a traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Final

import click

FAILED: Final = 2  # the command could not do its work
INTERRUPTED: Final = 130  # as a shell reports SIGINT
UNREAD: Final = 141  # as it reports SIGPIPE: who read standard output has gone


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run a command that may be interrupted, and may not be able to write what it has to say.

    What the encoding of an output lacks is escaped.  Output whose reader has gone ends the command quietly; any
    other that cannot be written, on a full disk for instance, ends it with a line that says so.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    except KeyboardInterrupt:  # before the command was there to say it better
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _give_up()
        raise SystemExit(UNREAD) from None
    except OSError as error:
        _give_up()
        # one with a file should have been explained where it happened
        where = "cannot write to standard output" if error.filename is None else os.fsdecode(error.filename)
        click.echo(f"riverbed: {where}: {error.strerror or error}", err=True)
        raise SystemExit(FAILED) from None


def _give_up() -> None:
    """Let what still waits to be written go nowhere, so that the end of the process does not fail as well."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no file; closed; none at all
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
