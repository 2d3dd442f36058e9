"""The target of a command, as users write it: a path, or a server as HOST:PORT or redis://..."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import SCHEMES, Address, parse_url, without_password
from riverbed.tools.live.tls import NO_TLS, TlsOptions

_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)?:(\d{1,5})", re.ASCII)


def server_address(target: str, tls: TlsOptions = NO_TLS) -> Address | None:
    """The address of a server, or None when `target` is a path.  Raises Failure."""
    if target.startswith(SCHEMES):
        try:
            address = parse_url(target)
        except ValueError as error:
            raise Failure(f"{without_password(target)}: {error}") from None
        return replace(address, tls=address.tls or tls.is_asked, tls_options=tls)
    found = _HOST_PORT.fullmatch(target)
    if found is None or Path(target).exists():
        return None
    if not 0 < int(found[2]) < 1 << 16:
        raise Failure(f"{target}: the port is not a number up to 65535")
    return Address((found[1] or "localhost").strip("[]"), int(found[2]), tls=tls.is_implied, tls_options=tls)
