"""Links that fall silent: what is sent is lost, and no end of a connection is told so.

with RealLink(start) as link:      a replica in a network namespace of its own; `silence` takes its cable away
with ProxiedLink(start) as link:   a proxy that passes nothing on, for who is not root
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.faults.proxy import Proxy
from tests.support.raw import Frames, RawClient
from tests.support.servers import RiverbedServer

_numbers = itertools.count()


class UnixClient(RawClient):
    """By way of a socket in the file system, which every network namespace shares."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._frames = Frames()


class Namespace:
    """A network of two ends: ours has the address `near`, and processes that begin with `prefix` have `far`."""

    def __init__(self) -> None:
        self._name = f"riverbed-{os.getpid()}-{next(_numbers)}"
        self._near_end = f"rb{os.getpid() % 10**7}n{next(_numbers)}"
        block = (os.getpid() * 8 + next(_numbers)) % (1 << 14)
        self.near, self.far = (f"10.213.{block >> 6}.{4 * (block & 63) + host}" for host in (1, 2))
        self.prefix = ["ip", "netns", "exec", self._name]

    def make(self) -> None:
        """Raises CalledProcessError where that is not allowed."""
        _ip("netns", "add", self._name)
        _ip("link", "add", self._near_end, "type", "veth", "peer", "name", "far", "netns", self._name)
        _ip("addr", "add", f"{self.near}/30", "dev", self._near_end)
        _ip("-n", self._name, "addr", "add", f"{self.far}/30", "dev", "far")
        _ip("-n", self._name, "link", "set", "far", "up")
        _ip("-n", self._name, "link", "set", "lo", "up")
        self.connect()

    def connect(self) -> None:
        _ip("link", "set", self._near_end, "up")

    def disconnect(self) -> None:
        _ip("link", "set", self._near_end, "down")

    def remove(self) -> None:
        for words in (("link", "del", self._near_end), ("netns", "del", self._name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class DistantServer(RiverbedServer):
    """A server in a namespace."""

    def __init__(self, namespace: Namespace, directory: Path, log_directory: Path, options: dict[str, object]) -> None:
        self._namespace = namespace
        self._sockets = Path(tempfile.mkdtemp(prefix="riverbed-"))
        super().__init__(directory, log_directory, options | {"unixsocket": self._sockets / "socket"})

    def program(self) -> list[str]:
        return [*self._namespace.prefix, *super().program()]

    def client(self, *, timeout_s: float = 60.0) -> RawClient:
        return UnixClient(self._sockets / "socket", timeout_s)

    def remove_socket(self) -> None:
        shutil.rmtree(self._sockets, ignore_errors=True)


class SilentLink:
    """A primary, a replica, and a link between them; `host` and `port` are where the replica finds the primary."""

    def __init__(self, primary: RiverbedServer, replica: RiverbedServer, host: str, port: int) -> None:
        self.primary = primary
        self.replica = replica
        self.host = host
        self.port = port

    def silence(self) -> None:
        raise AssertionError("a kind of link says how")

    def restore(self) -> None:
        raise AssertionError("a kind of link says how")


class _RealLink(SilentLink):
    def __init__(self, primary: RiverbedServer, replica: RiverbedServer, namespace: Namespace) -> None:
        super().__init__(primary, replica, namespace.near, primary.port)
        self.silence, self.restore = namespace.disconnect, namespace.connect


class _ProxiedLink(SilentLink):
    def __init__(self, primary: RiverbedServer, replica: RiverbedServer, proxy: Proxy) -> None:
        super().__init__(primary, replica, "127.0.0.1", proxy.port)
        self.silence, self.restore = proxy.passes.clear, proxy.passes.set


def _has_namespaces() -> bool:
    """Whether we may make networks."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    namespace = Namespace()
    try:
        namespace.make()
    except subprocess.CalledProcessError:
        return False
    finally:
        namespace.remove()
    return True


@contextlib.contextmanager
def _real_link(home: Path, options: dict[str, object]) -> Iterator[SilentLink]:
    """By a network namespace."""
    namespace = Namespace()
    try:
        namespace.make()
        near = options | {"bind": f"127.0.0.1 {namespace.near}", "protected-mode": "no"}
        with RiverbedServer(_new(home, "primary"), home / "logs", near) as primary:
            replica = DistantServer(namespace, _new(home, "replica"), home / "logs", options)
            try:
                with replica:
                    yield _RealLink(primary, replica, namespace)
            finally:
                replica.remove_socket()
    finally:
        namespace.remove()


@contextlib.contextmanager
def proxied_link(home: Path, options: dict[str, object]) -> Iterator[SilentLink]:
    with (
        RiverbedServer(_new(home, "primary"), home / "logs", options) as primary,
        RiverbedServer(_new(home, "replica"), home / "logs", options) as replica,
        Proxy(lambda: primary.port) as proxy,
    ):
        yield _ProxiedLink(primary, replica, proxy)


def _new(home: Path, name: str) -> Path:
    directory = home / name
    directory.mkdir()
    return directory


def best_link(home: Path, options: dict[str, object]) -> AbstractContextManager[SilentLink]:
    return _real_link(home, options) if _has_namespaces() else proxied_link(home, options)
