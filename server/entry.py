"""The executable `riverbed-server`: signals do from the first moment what they do later.

The imports take most of a start.  Until they end there is nothing to close, so a stop is an end at once, with status 0.
"""

from __future__ import annotations

import os
import signal
import sys

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as Redis: a terminal that closes stops no server
for _number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(_number, lambda number, frame: os._exit(0))

from riverbed.server.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
