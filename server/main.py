"""`riverbed-server`: reads the command line, runs the server and returns an exit status.

Exit status 0 after a clean stop, 1 when the server could not start or had to give up; the reason is one line that says
what to do.  `listener` serves the clients.
"""

from __future__ import annotations

import gc

# Nothing that is imported is garbage: to look for it takes a twelfth of the start.
gc.disable()

import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import lmdb
import uvloop

from riverbed.server import log as serverlog
from riverbed.server.commands.access.users import UserFileError, configured
from riverbed.server.config.config import Config
from riverbed.server.config.file import ConfigFileError
from riverbed.server.config.values import ConfigError
from riverbed.server.descriptors import TooFewDescriptorsError, allow_descriptors
from riverbed.server.network.listener import serve
from riverbed.server.start.errors import explained
from riverbed.server.start.last_words import tell_by_standard_error
from riverbed.server.tls.contexts import TlsSettingsError, new_contexts
from riverbed.server.version import IS_COMPILED, PYTHON_VERSION, REDIS_VERSION, VERSION
from riverbed.store import wire
from riverbed.store.disk.locks.remote import remote_type
from riverbed.store.disk.standard_descriptors import fill_standard_descriptors
from riverbed.store.errors import StoreError

gc.enable()

HELP_COLUMNS: Final = 80  # of --help in a pipe or a file

log = logging.getLogger(serverlog.ROOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server that `arguments` (by default those of the process) describe; -> its exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # also where this module is the program
    fill_standard_descriptors()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in words or words[:1] == ["-h"]:
        return _print(_help)
    if "--version" in words or words[:1] == ["-v"]:
        return _print(_version)
    try:
        config = Config.load(words)
        _check_users(config)
        new_contexts(config)  # to learn whether it can be done; nothing is open yet
        serverlog.open_log(config)
    except (ConfigError, ConfigFileError, UserFileError, TlsSettingsError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"logfile: {error.filename}: {error.strerror}")
    if not config.unixsocket and not ((config.port or config.tls_port) and config.bind):
        return _complain("nothing to listen on: give a port or tls-port and an address to bind, or a unixsocket")
    if _lacks_parent(config.dir):  # a misspelled path, or a disk that is not mounted
        return _complain(f"dir: {config.dir} cannot be made: there is no directory {config.dir.parent}")
    if os.path.islink(config.dir) and not os.path.exists(config.dir):
        return _complain(f"dir: {config.dir} is a link to {os.readlink(config.dir)}, which is not there")
    tell_by_standard_error()
    log.info("riverbed-server %s, pid %d, data in %s", VERSION, os.getpid(), config.dir)
    if not wire.IS_NATIVE:
        lack = "needs the global lock, which this Python lacks" if _lacks_lock() else "a C compiler would have built"
        log.info("without the native module, which %s: requests are read more slowly", lack)
    for line in config.ignored:
        log.warning("%s: %s is ignored: %s", line.place, line.name, line.reason)
    if (kind := remote_type(config.dir)) is not None:
        log.warning(
            "%s is on %s, a file system of another machine: LMDB, which holds the tables, is not safe there, and a "
            "server that a second machine starts on it may not be noticed; use a local disk",
            config.dir,
            kind,
        )
    try:
        allow_descriptors(config)
    except TooFewDescriptorsError as error:
        return _give_up(str(error), config)
    _calm_garbage_collection()
    return run(config)


def _lacks_lock() -> bool:
    """Whether this Python is a free-threaded one, for which no native module is built."""
    import sysconfig  # slow to load

    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _lacks_parent(directory: Path) -> bool:
    """Whether there is no directory that this one could be made in; what else keeps it from that, the start tells."""
    try:
        return not stat.S_ISDIR(directory.parent.stat().st_mode)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)


def _check_users(config: Config) -> None:
    """Raise UserFileError when the users that `config` asks for cannot be made; nothing is open yet."""
    try:
        configured(config)
    except OSError as error:
        raise UserFileError(f"aclfile: {error.filename}: {error.strerror}") from None


def run(config: Config) -> int:
    """Serve until the server stops; -> exit status.  Explains every error that can keep a server from starting.

    Damaged tables are made again of the log, and the server starts once more.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_while_loading)  # until the listener has its own
    try:
        try:
            return uvloop.run(serve(config))
        except (StoreError, lmdb.Error) as error:
            from riverbed.server.start.repair import mended  # with all that checks and repairs need

            if not mended(config, error):
                raise
        return uvloop.run(serve(config))
    except (StoreError, OSError, lmdb.Error) as error:
        return _give_up(explained(error, config), config)


def _give_up(reason: str, config: Config) -> int:
    """Log why there is no server; -> exit status 1."""
    log.error("%s", reason)
    # a person who started the server by hand should not have to search for the log to learn that it did not start
    return _complain(reason) if config.logfile else 1


def _exit_while_loading(number: int, frame: FrameType | None) -> NoReturn:
    """Exit at once, as Redis does: a half-loaded state is worth no more than the state after a crash.

    Raises no exception, because LMDB's calls do not survive one everywhere.
    """
    log.warning("Received shutdown signal during loading, exiting now.")
    os._exit(0)


def _calm_garbage_collection() -> None:
    """Collect garbage rarely, and never scan the objects of the start, among which no garbage was found.

    Requests leave no cycles behind.  Measured with 170,000 streams touched in 8 s: with Python's own thresholds 1213
    collections took 280 ms, the longest 31 ms, and all of it stalled every client; with few of them the longest took
    6 ms.  With a single stream there is no difference.

    A collection of the second generation looks at 50,000 objects at most: at a million new consumers it took 90 ms and
    more, a third of a microsecond each.
    """
    gc.freeze()
    gc.set_threshold(10_000, 5, 2000)


def _complain(reason: str) -> int:
    """Write to standard error why there is no server, before there is a log; -> exit status 1."""
    for line in reason.split("\n") if sys.stderr is not None else ():
        sys.stderr.write(f"riverbed-server: {line.translate(serverlog.CONTROL)}\n")
    return 1


def _print(text: Callable[[], str]) -> int:
    """Write a text to standard output; -> exit status 1 when that takes none, as on a full disk."""
    if sys.stdout is None:
        return _complain("standard output is closed")
    try:
        sys.stdout.write(text())
        sys.stdout.flush()
    except OSError as error:
        # what is buffered would fail once more at the end of the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if isinstance(error, BrokenPipeError) else _complain(f"standard output: {error.strerror}")
    return 0


def _help() -> str:
    from rich.console import Console

    from riverbed.server.config.help import print_help

    console = Console(width=None if sys.stdout.isatty() else HELP_COLUMNS)
    with console.capture() as text:
        print_help(console)
    return text.get()


def _version() -> str:
    import platform

    python = f"{platform.python_implementation()} {PYTHON_VERSION}"
    form = "compiled" if IS_COMPILED else "interpreted"
    native = "with" if wire.IS_NATIVE else "without"
    return (
        f"riverbed-server {VERSION} (commands of Redis {REDIS_VERSION}; {python}, {form}, {native} the native module)\n"
    )


if __name__ == "__main__":
    sys.exit(main())
