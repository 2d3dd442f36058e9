"""The password for a server whose address has none: from the environment, from a file, or typed.

A password in a URL can be read by every user of the machine, in the list of its processes.
"""

from __future__ import annotations

import functools
import getpass
import os
import sys
from pathlib import Path
from typing import Final

from riverbed.tools.console.console import Failure, explain

VARIABLE: Final = "REDISCLI_AUTH"  # as for redis-cli
FILE_VARIABLE: Final = "RIVERBED_PASSWORD_FILE"


@functools.cache
def find_password(address: str) -> str | None:
    """The password for `address`; None when there is none and no terminal to ask at.  Raises Failure."""
    path = os.environ.get(FILE_VARIABLE)
    if path:
        try:
            return Path(path).read_text().partition("\n")[0].removesuffix("\r")
        except OSError as error:
            raise Failure(f"{FILE_VARIABLE}: {explain(error)}") from error
        except UnicodeDecodeError as error:
            raise Failure(f"{FILE_VARIABLE}: {path} is not UTF-8") from error
    password = os.environ.get(VARIABLE)
    if password is None and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        password = getpass.getpass(f"Password for {address}: ", sys.stderr)
    return password
