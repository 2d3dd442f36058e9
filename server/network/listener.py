"""Sockets and signals: bind, open the store, load it, accept, serve until the server stops.

`server/stopping.py` stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from riverbed.server.assembly import Server, open_server
from riverbed.server.network.addresses import Addresses, accept, require_unused
from riverbed.server.network.glance import Glance
from riverbed.server.network.guarded import GuardedConnection
from riverbed.server.network.leaving import Leaving
from riverbed.server.start.last_words import kept_last_words
from riverbed.server.version import VERSION
from riverbed.store.disk.real_files import naming

if TYPE_CHECKING:
    from riverbed.server.config.config import Config
    from riverbed.server.prometheus.page import Metrics

log = logging.getLogger("riverbed")

_MAX_KEEP_ALIVE_S: Final = 32767  # Linux takes no more


class Listener:
    """The open sockets of one server; `metrics` is the page for Prometheus, if it is asked for."""

    def __init__(self, config: Config, server: Server, addresses: Addresses) -> None:
        self.config = config
        self.server = server
        self.metrics: Metrics | None = None
        self._addresses = addresses
        self._servers: list[asyncio.Server] = []
        self._unix_place: tuple[int, int] | None = None  # the device and the inode of the Unix socket that it made
        self._tcp: list[socket.socket] = []
        self._handshakes = server.tls.new_handshakes()
        self._leaving = Leaving()
        config.observe("tcp-keepalive", self._keep_alive)

    async def listen(self) -> None:
        """Accept connections to the bound addresses, and to the Unix socket if there is to be one, from now on.

        A second call does nothing.  Raises OSError.
        """
        if self._servers:
            return
        self.metrics = await _open_metrics(self.server, self._addresses)  # before clients may think that all is ready
        loop = asyncio.get_running_loop()
        config = self.config
        self._tcp += [*self._addresses.clients, *self._addresses.tls]
        self._keep_alive()
        backlog = config.tcp_backlog
        for sock in self._tcp:
            accept(sock, backlog)
        for sock in self._addresses.clients:
            self._servers.append(await loop.create_server(self._accept, sock=sock, backlog=backlog))
        for sock in self._addresses.tls:
            self._servers.append(await loop.create_server(self._accept_tls, sock=sock, backlog=backlog))
        if config.unixsocket:
            sock = make_unix_socket(config)
            self._unix_place = _place_of(config.unixsocket)
            self._servers.append(await loop.create_unix_server(self._accept_local, sock=sock, backlog=backlog))

    def _accept(self) -> asyncio.Protocol:
        return GuardedConnection(self.server, self._handshakes, self._leaving)

    def _accept_local(self) -> asyncio.Protocol:
        return GuardedConnection(self.server, self._handshakes, self._leaving, self.config.unixsocket)

    def _accept_tls(self) -> asyncio.BaseProtocol:
        return self.server.tls.accept(self._handshakes, self._accept, self._refuses_handshakes)

    def _refuses_handshakes(self) -> bool:
        """Whether there is no place for one more client; it gets no answer, because it understands none yet."""
        executor = self.server.executor
        if self.server.stopping.is_ending:
            return True
        if len(executor.context.sessions) + len(self._handshakes) < self.config.maxclients:
            return False
        executor.stats.connections_rejected += 1
        return True

    def _keep_alive(self) -> None:
        """Have the sockets of the clients that come from now on probe a silent peer.

        A socket has the options of the one that accepts it, so a new client costs no call.
        """
        for sock in self._tcp:
            if sock.fileno() >= 0:
                keep_alive(sock, self.config.tcp_keepalive)

    def close(self) -> None:
        """Accept no more, and remove the Unix socket."""
        self._tcp.clear()
        self._remove_unix_socket()
        for server in self._servers:
            server.close()
        self._handshakes.close()

    def _remove_unix_socket(self) -> None:
        """Remove it unless another program's has taken its place.  It is still open, so no other has its inode."""
        place, self._unix_place = self._unix_place, None
        path = self.config.unixsocket
        try:
            if place is not None and place == _place_of(path):
                os.unlink(path)
        except OSError as error:
            log.warning("the Unix socket was not removed: %s", error)


def _place_of(path: str) -> tuple[int, int] | None:
    """The device and the inode of a file; None when it is gone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def make_unix_socket(config: Config) -> socket.socket:
    """Make the Unix socket; no client can connect to it before it has its permissions and listens.

    It takes the place of one at which nothing listens any more.  Raises OSError, naming the path.
    """
    require_unused(config.unixsocket)  # another server may have come since the start began
    with contextlib.suppress(FileNotFoundError):
        os.unlink(config.unixsocket)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with naming(Path(config.unixsocket)):
            sock.bind(config.unixsocket)
        if config.unixsocketperm:
            os.chmod(config.unixsocket, config.unixsocketperm)
    except BaseException:
        sock.close()
        raise
    return sock


def keep_alive(sock: socket.socket, seconds: int) -> None:
    """Probe a silent peer after `seconds`, then three times at a third of it, as Redis does; 0: never."""
    seconds = min(seconds, _MAX_KEEP_ALIVE_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, seconds > 0)
    if not seconds:
        return
    for name, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", max(seconds // 3, 1)), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)  # macOS has another name for the first one
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def serve(config: Config) -> int:
    """Open, serve, stop; -> the process's exit status.  Raises what opening and binding raise."""
    addresses = Addresses(config)
    try:
        server = open_server(config, config.dir)
    except BaseException:
        addresses.close()
        raise
    server.start_threads()
    # The loop has threads for the name of a primary, and ends the process where it cannot start them; this starts them.
    await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 0, flags=socket.AI_NUMERICHOST)
    with kept_last_words(config.dir):  # the loading reads pages, too
        return await serve_at(addresses, server)


async def serve_at(addresses: Addresses, server: Server) -> int:
    """As `serve`, for a server whose store is open and not loaded yet."""
    config = server.context.config
    loop = asyncio.get_running_loop()
    try:
        loop.set_exception_handler(server.tasks.noticed)
        listener = Listener(config, server, addresses)
        server.stopping.close_listeners = listener.close
        glance = Glance()
        server.executor.beside.sockets = glance
        server.executor.events.disconnected.append(glance.leave)
        await _load(server, listener)
    except BaseException:
        addresses.close()
        raise
    engine, stopping, metrics = server.engine, server.stopping, listener.metrics
    loop.add_signal_handler(signal.SIGTERM, stopping.terminate)
    loop.add_signal_handler(signal.SIGINT, stopping.interrupt)
    if metrics is not None:
        log.info("metrics on port %d", config.metrics_port)
    report = engine.recovery
    if engine.has_settled:
        log.info("ended a compaction that was interrupted")
    for path in report.moved_files:
        log.warning("%s was copied: the disk had refused part of it, and would have lacked that at the next boot", path)
    if report.torn_tail is not None:
        log.warning("cut a torn tail off the log: %s", report.torn_tail)
    if report.unsaved is not None:
        log.warning("the tables could not be brought up to the log, to be tried again: %s", report.unsaved)
    log.info(
        "Riverbed %s, %d keys, %d commands of the log replayed in %.3f s. Ready to accept connections on %s",
        VERSION,
        sum(db.size for db in engine.txn.databases),
        report.commands,
        report.seconds,
        ports_text(config),
    )
    server.start()
    await stopping.begun_to_end.wait()
    if metrics is not None:
        metrics.close()
    return await server.finish()


def ports_text(config: Config) -> str:
    """Where clients find the server, for people."""
    if not config.tls_port:
        return f"port {config.port}"
    return f"port {config.port}, with TLS {config.tls_port}" if config.port else f"port {config.tls_port} with TLS"


async def _load(server: Server, listener: Listener) -> None:
    """Load the store, and listen.  When that fails, clients that have come meanwhile are cut off.

    Raises what opening and binding raise.
    """
    try:
        await server.load(listener.listen)
        await listener.listen()
    except BaseException:
        listener.close()
        server.executor.cut_all_off()
        if server.engine.is_loaded:
            server.engine.close()
        raise


async def _open_metrics(server: Server, addresses: Addresses) -> Metrics | None:
    """The metrics page, if it is asked for; its libraries, which take memory, are loaded only then."""
    if not server.context.config.metrics_port:
        return None
    from riverbed.server.prometheus.page import Metrics

    executor = server.executor
    metrics = Metrics(server.context, executor.control, server.replication, server.tasks, executor.failures)
    for sock in addresses.metrics:
        accept(sock, server.context.config.tcp_backlog)
    await metrics.listen(addresses.metrics, server.tls if server.context.config.metrics_tls else None)
    return metrics
