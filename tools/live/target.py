"""The target of a command, as users write it: a path, or a server as HOST:PORT or redis://..."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from pathlib import Path

from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import SCHEMES, Address, parse_url, without_password
from riverbed.tools.live.tls import NO_TLS, TlsOptions

# What can only be meant for a server, and is none: a path of that kind begins with `/` or `./`.
_MISTYPED = re.compile(r"(?!\.{0,2}/)(?:.*://.*|[^/]*:\d+(?:/\d*)?)", re.ASCII | re.DOTALL)
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)?:(\d{1,5})", re.ASCII)


def server_address(target: str, tls: TlsOptions = NO_TLS, *, other: str = "") -> Address | None:
    """The address of a server, or None when `target` is a path.  Raises Failure.

    The files of TLS alone mean TLS, unless they are for the `other` server of a command, which is `rediss://`.
    """
    if target.startswith(SCHEMES):
        try:
            address = parse_url(target)
        except ValueError as error:
            raise Failure(f"{without_password(target)}: {error}") from None
        wants_tls = tls.is_asked if other.startswith("rediss://") else tls.is_implied
        return replace(address, tls=address.tls or wants_tls, tls_options=tls)
    found = _HOST_PORT.fullmatch(target)
    with contextlib.suppress(OSError):  # too long for a name, or in a folder that may not be entered
        if Path(target).exists():
            return None
    if found is None:
        if _MISTYPED.fullmatch(target):
            named = without_password(target)
            raise Failure(f"{named} is not a server: expected HOST:PORT or redis://...; write ./{named} for a path")
        return None
    if not 0 < int(found[2]) < 1 << 16:
        raise Failure(f"{target}: the port is not a number up to 65535")
    return Address((found[1] or "localhost").strip("[]"), int(found[2]), tls=tls.is_implied, tls_options=tls)
