"""What keeps a server from starting, in one line that says what to do."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING

import lmdb

from riverbed.store.errors import (
    CorruptionError,
    DamagedRowError,
    ForeignLogError,
    LockedError,
    ReplayError,
    StoreError,
    VersionError,
)

if TYPE_CHECKING:
    from riverbed.server.config.config import Config


def explained(error: StoreError | OSError | lmdb.Error, config: Config) -> str:
    """One line about what is wrong, and what to do."""
    match error:
        case LockedError():
            return f"{error}; stop it, or give this one another --dir"
        case ForeignLogError():
            return str(error)
        case DamagedRowError():
            mends = f"`riverbed check {config.dir} --repair` makes the tables again of the log"
            return f"damaged data: {error}; nothing was changed, {mends}"
        case CorruptionError():
            return f"damaged data: {error}; nothing was changed, `riverbed check {config.dir}` shows more"
        case ReplayError():
            return f"the log cannot be replayed: {error}; nothing was changed, `riverbed check {config.dir}` shows more"
        case VersionError():
            return f"{config.dir} is of another version of Riverbed: {error}"
        case StoreError():
            return f"{config.dir} cannot be opened: {error}"
        case lmdb.MapFullError():
            return (
                f"{config.dir} cannot be opened: the tables have no room for what the log has beyond them; start with a"
                " larger lmdb-map-size"
            )
        case lmdb.MemoryError():
            return (
                f"{config.dir} cannot be opened: the address space has no room for the map of its tables; start with a"
                " smaller lmdb-map-size, or a larger `ulimit -v`"
            )
        case lmdb.Error():
            return f"{config.dir} cannot be opened: LMDB says {error}; `riverbed check {config.dir}` shows more"
    if isinstance(error, socket.gaierror):  # its number is none of those below
        return f"cannot start: {error.filename}: {error.strerror}"
    detail = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error.filename, (str, bytes)):
        detail = f"{os.fsdecode(error.filename)}: {detail}"
    match error.errno:
        case errno.EADDRINUSE if error.filename == config.unixsocket:
            return f"{detail}; stop the program that listens there, or choose another --unixsocket"
        case errno.EEXIST if error.filename == config.unixsocket:
            return f"cannot start: {error.filename} is there, and is no socket; choose another --unixsocket"
        case errno.EADDRINUSE:
            setting, port = _setting_in_use(error, config)
            return (
                f"port {port} is in use; stop the program that listens there, or choose another --{setting} ({detail})"
            )
        case errno.EADDRNOTAVAIL:
            return f"this machine has no such address to bind: {detail}"
        case errno.EACCES | errno.EPERM:
            return f"no permission: {detail}{_permissions(error)}"
        case errno.ENOSPC:
            return f"the disk is full: {detail}"
        case errno.EFBIG:
            return f"cannot start: {detail}; see `ulimit -f`, and how large a file may be on that disk"
        case errno.EEXIST | errno.ENOTDIR if config.dir.is_file():
            return f"cannot start: {config.dir} is not a directory"
    return f"cannot start: {detail}"


def _permissions(error: OSError) -> str:
    """What the file of `error` allows, and whom; nothing if that cannot be seen."""
    try:
        found = os.stat(error.filename)
    except (OSError, TypeError, ValueError):
        return ""
    return f" ({stat.filemode(found.st_mode)}, of user {found.st_uid}; the server is user {os.geteuid()})"


def _setting_in_use(error: OSError, config: Config) -> tuple[str, int]:
    """The setting with the port that is in use, and that port."""
    for setting, port in (("metrics-port", config.metrics_port), ("tls-port", config.tls_port)):
        if port and str(error.filename).endswith(f":{port}"):
            return setting, port
    return "port", config.port
