"""The addresses that the settings name, taken before the store is opened.

    bind       no program that listens has the port, and connections to it are refused
    ...        the store is opened, and loaded for up to half a second
    listen     `listener.py`: connections are accepted, unless another program was faster

So a start that fails because it cannot have an address has not touched the store.  A Unix socket is a file in a folder.
Here we only check that it can be made; it is made when the server listens, as it takes the place of an older one, at
which nothing listens any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.server.config.config import Config

_EVERYWHERE: Final = {"*": "0.0.0.0", "::*": "::"}
# That the machine lacks an address, not that another program has the port.
_NOT_HERE: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ENOPROTOOPT}
# sun_path of sockaddr_un, without its NUL
_MAX_UNIX_PATH_BYTES: Final = 107 if sys.platform == "linux" else 103


class Addresses:
    """Bound sockets that do not listen yet: for clients, for those that speak TLS, and for the metrics page."""

    def __init__(self, config: Config) -> None:
        """Bind.  Raises OSError, naming the address."""
        self.clients: list[socket.socket] = []
        self.tls: list[socket.socket] = []
        self.metrics: list[socket.socket] = []
        try:
            if config.metrics_port:
                self.metrics = bind(config.metrics_bind, config.metrics_port)
            if config.port:
                self.clients = bind(config.bind, config.port)
            if config.tls_port:
                self.tls = bind(config.bind, config.tls_port)
            if config.unixsocket:
                _require_place(Path(config.unixsocket))
                require_unused(config.unixsocket)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets, for a start that fails."""
        for sock in (*self.clients, *self.tls, *self.metrics):
            sock.close()


def bind(addresses: Iterable[str], port: int) -> list[socket.socket]:
    """Sockets bound to `port` at each address; the machine need not have one that begins with `-`.

    Raises OSError, naming the address.
    """
    sockets: list[socket.socket] = []
    for address in addresses:
        host = address.removeprefix("-")
        host = _EVERYWHERE.get(host, host)
        try:
            sockets += _bind_host(host, port)
        except OSError as error:
            if address.startswith("-") and (isinstance(error, socket.gaierror) or error.errno in _NOT_HERE):
                continue
            for sock in sockets:
                sock.close()
            kind = socket.gaierror if isinstance(error, socket.gaierror) else OSError  # their numbers are no errnos
            raise kind(error.errno, f"{error.strerror or error}", f"{host}:{port}") from None
    return sockets


def accept(sock: socket.socket, backlog: int) -> None:
    """Have the system accept connections to a bound socket.  Raises OSError, naming the address.

    Another socket may have been bound to it meanwhile, and accept already: uvloop does not raise that.
    """
    try:
        sock.listen(backlog)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None


def _bind_host(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to `host`, a name that may stand for several addresses."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:  # a part of the name is empty, or longer than a name may have it
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
    with contextlib.ExitStack() as held:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = held.enter_context(socket.socket(family, kind, protocol))
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sockets.append(sock)
        held.pop_all()
    return sockets


def _require_place(path: Path) -> None:
    """Raise the OSError that making a socket at `path` would meet."""
    if len(os.fsencode(path)) > _MAX_UNIX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    folder = path.parent
    folder.stat()
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def require_unused(path: str) -> None:
    """Raise the OSError of a path that is no socket, or of one that a program accepts connections at.

    A server that was killed leaves its socket, which nothing listens at and which may be removed.
    """
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a program whose backlog is full would keep us waiting
        found = probe.connect_ex(path)
    if found in (0, errno.EAGAIN, errno.EPROTOTYPE):
        found = errno.EADDRINUSE
    if found not in (errno.ECONNREFUSED, errno.ENOENT):
        raise OSError(found, os.strerror(found), path)
