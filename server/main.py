"""`riverbed-server`: from a command line to a running server, and from whatever stops it to an exit status.

Exit status 0 after a clean stop, 1 when the server could not start or had to give up; the reason is one line that says
what to do.  What serving is, `listener` knows.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import resource
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from server import serverlog
from server.config import Config, ConfigError, ConfigFileError
from server.listener import serve
from server.version import REDIS_VERSION, VERSION
from store.errors import CorruptionError, LockedError, ReplayError, StoreError, VersionError

# Descriptors that are not clients: listeners, log files, tables, the directory's lock, and some to spare.
RESERVED_DESCRIPTORS: Final = 32

log = logging.getLogger(serverlog.ROOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server that `arguments` (those of the process by default) ask for -> its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in ("--help", "-h"):
        from rich.console import Console

        from server.usage import print_help

        print_help(Console(soft_wrap=False))
        return 0
    if words and words[0] in ("--version", "-v"):
        return _print_version()
    try:
        config = Config.load(words)
        serverlog.open_log(config)
    except (ConfigError, ConfigFileError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"logfile: {error.filename}: {error.strerror}")
    if not config.unixsocket and not (config.port and config.bind):
        return _complain("nothing to listen on: give a port and an address to bind, or a unixsocket")
    log.info("riverbed-server %s, pid %d, data in %s", VERSION, os.getpid(), config.dir)
    for line in config.ignored:
        log.warning("%s: %s has no meaning here and is ignored", line.place, line.name)
    _allow_descriptors(config)
    return run(config)


def run(config: Config) -> int:
    """Serve until told to stop -> exit status.  Everything that can keep a server from starting is explained here."""
    try:
        return uvloop.run(serve(config))
    except KeyboardInterrupt:  # before the listener took the signals over
        return 1
    except LockedError:
        log.error("%s is in use by another riverbed-server; stop that one, or give this one another --dir", config.dir)
    except CorruptionError as error:
        log.error("the data is damaged: %s", error)
        log.error("nothing was changed; `riverbed check %s` tells more", config.dir)
    except ReplayError as error:
        log.error("the log in %s cannot be replayed: %s", config.dir, error)
        log.error("nothing was changed; `riverbed check %s` tells more", config.dir)
    except VersionError as error:
        log.error("the data in %s is of another version: %s", config.dir, error)
    except StoreError as error:
        log.error("the data in %s cannot be opened: %s", config.dir, error)
    except OSError as error:
        log.error("%s", _explained(error, config))
    return 1


def _explained(error: OSError, config: Config) -> str:
    """One line about what the operating system refused."""
    if error.errno == errno.EADDRINUSE:
        return f"port {config.port} is in use; stop what listens there, or choose another --port ({_detail(error)})"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"an address to bind does not exist on this machine: {_detail(error)}"
    if error.errno in (errno.EACCES, errno.EPERM):
        if error.filename is None:
            return f"no permission to listen on port {config.port}: {_detail(error)}"
        return f"no permission: {_detail(error)}"
    if error.errno == errno.ENOSPC:
        return f"the disk under {config.dir} is full: {_detail(error)}"
    return f"cannot start: {_detail(error)}"


def _detail(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {text}" if isinstance(error.filename, (str, bytes)) else text


def _allow_descriptors(config: Config) -> None:
    """Raise the limit of open files to what `maxclients` needs; lower `maxclients` to what the limit allows."""
    wanted = config.maxclients + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):  # macOS allows less than it says
        reachable = soft
    if reachable < wanted:
        allowed = max(1, reachable - RESERVED_DESCRIPTORS)
        log.warning(
            "maxclients is %d instead of %d: the system allows %d open files (see ulimit -n)",
            allowed,
            config.maxclients,
            reachable,
        )
        config.set([("maxclients", str(allowed))])


def _complain(reason: str) -> int:
    """Say why there is no server, before there is a log to say it in."""
    sys.stderr.write(f"riverbed-server: {reason}\n")
    return 1


def _print_version() -> int:
    sys.stdout.write(
        f"riverbed-server {VERSION} (commands of Redis {REDIS_VERSION}; "
        f"{platform.python_implementation()} {platform.python_version()})\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
