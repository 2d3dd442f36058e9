"""The executable `riverbed`: an interrupt, SIGTERM or SIGHUP ends it without a traceback, even during the imports.

The imports take most of the time of a short command, and no work begins before they end.  Until then the system ends
the process at one of them; after that `cli` does.
"""

from __future__ import annotations

import os
import signal
import sys

_former = signal.getsignal(signal.SIGINT)
if _former is signal.default_int_handler:  # with nohup, for instance, it is another one
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from riverbed.store.disk.standard_descriptors import fill_standard_descriptors  # noqa: E402
from riverbed.tools import cli  # noqa: E402
from riverbed.tools.console import outputs  # noqa: E402
from riverbed.tools.console.interrupts import interrupt_at_termination  # noqa: E402


def main() -> None:
    """Run the subcommand that the command line names."""
    fill_standard_descriptors()
    if sys.stdout is None:  # it was closed: what is written there is an error, as where the disk is full
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    with outputs.guarded():  # also before `cli` guards a subcommand
        signal.signal(signal.SIGINT, _former)
        interrupt_at_termination()
        cli.main(prog_name="riverbed")


if __name__ == "__main__":
    main()
