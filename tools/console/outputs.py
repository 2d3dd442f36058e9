"""Handle errors of standard output and standard error, and give exit statuses to commands that do not complete.

The import takes almost no time, so this module is loaded first and no interrupt ends a command with a traceback.
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
SIGNAL_STATUS: Final = 128  # a shell adds the number of the signal that ended a command
INTERRUPTED: Final = 130  # as a shell reports SIGINT
UNREAD: Final = 141  # as a shell reports SIGPIPE: the reader of standard output is gone


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run a command, and end it without a traceback when it is interrupted or cannot write its output.

    Characters that the output's encoding lacks are escaped.  If the reader of the output is gone, the command ends
    quietly.  If the output cannot be written for another reason, such as a full disk, it ends with an error line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    except KeyboardInterrupt as error:  # before the command could report it with more detail
        raise SystemExit(interrupted_status(error)) from None
    except BrokenPipeError:
        _give_up()
        raise SystemExit(UNREAD) from None
    except OSError as error:
        _give_up()
        # An error with a file name should have been explained by the code that caused it.
        where = "cannot write to standard output" if error.filename is None else os.fsdecode(error.filename)
        click.echo(f"riverbed: {where}: {error.strerror or error}", err=True)
        raise SystemExit(FAILED) from None


def interrupted_status(error: KeyboardInterrupt) -> int:
    """The exit status after `error`, which holds the number of its signal if that is not SIGINT."""
    return SIGNAL_STATUS + error.args[0] if error.args else INTERRUPTED


def _give_up() -> None:
    """Discard buffered output, so that the end of the process does not fail as well."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not a file; closed; missing
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
