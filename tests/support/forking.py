"""Servers forked from a process that has imported all that a server imports: a start without 0.13 s of imports.

A forked server is a process of its own as one that was started by its command: its own pid, arguments, working
directory, environment, standard streams and signals; it runs `main`, and ends as an interpreter does.  Nothing but
imported modules is there before.  Its parent is the `Nursery`, a process for each worker of pytest, which never runs a
line of a server and of which all are forked alike: no server inherits anything from another one, nor from the tests.

    tests ---- words, directory, environment, log ----> nursery ---- fork ----> server, server, ...
          <--- pid, exit statuses --------------------

Tests of the start itself start the real command, and so does whoever changes what an interpreter or the kernel looks at
when a program begins: another environment, umask, limit, priority.  `Nursery.serves` says so.  What is left to tell:
/proc/PID/cmdline is the nursery's, and all servers of a nursery have the same seed for hashes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Final

# A request is one message: the words of a server and the environment of the tests.
_MESSAGE_BYTES: Final = 1 << 17
# What pytest changes with each test, and what tests of Spark change.  Nothing of it matters before a server runs: they
# add to PYTHONPATH where Riverbed is imported from anyway.
_PASSED_ON: Final = ("PYTEST_CURRENT_TEST", "PYSPARK_", "PYTHONPATH", "SPARK_", "TMPDIR")


def is_possible() -> bool:
    """Whether this system has what a nursery needs."""
    return hasattr(os, "pidfd_open") and sys.platform == "linux"


class ForkedServer:
    """A server that a nursery has forked, with the methods of `subprocess.Popen` that tests use.

    As with a child of the tests, its pid is not given to another process before its end was waited for.
    """

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, for `timeout` seconds at most; -> as `poll`.  Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0)
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._nursery.status_of(self.pid)
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._pidfd)


class Nursery:
    """The process that servers are forked from.  Begun when the first one is wanted, and ended with the tests."""

    def __init__(self, directory: Path) -> None:
        """Servers work in `directory`, as does their nursery, and have the surroundings of this moment."""
        self.directory = directory
        self._surroundings = _surroundings()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def serves(self) -> bool:
        """Whether a server forked now is as one that is started now."""
        return _surroundings() == self._surroundings

    def start(self, words: list[str], log: BinaryIO) -> ForkedServer:
        """Start a server with the arguments `words`, whose standard output and error are `log`."""
        passed_on = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        return ForkedServer(self, self._ask({"words": words, "environment": passed_on}, log.fileno()))

    def status_of(self, pid: int) -> int:
        """How the server `pid`, which has ended, did so: as `subprocess.Popen.returncode`."""
        return self._ask({"ended": pid})

    def _ask(self, request: dict[str, Any], *descriptors: int) -> int:
        with self._lock:
            if self._process is None:
                self._process = self._begin()
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(_MESSAGE_BYTES)
        assert answer, f"the nursery of servers has ended with status {self._process.wait()}"
        return int(answer)

    def _begin(self) -> subprocess.Popen[bytes]:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())]
            process = subprocess.Popen(
                words,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)
        return process

    def _end(self) -> None:
        assert self._process is not None
        self._socket.close()
        self._process.wait()


def _surroundings() -> object:
    """What a program inherits and what is looked at when it begins, but for what a nursery passes on."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_PASSED_ON)}
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = [resource.getrlimit(getattr(resource, name)) for name in names]
    umask = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask"))
    return environment, limits, umask, os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)


def _wait_for_birth(tests: socket.socket) -> dict[str, Any]:
    """Serve the tests until they are gone, and then exit; -> in a forked process: what it was asked to be."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(tests, _MESSAGE_BYTES, 1)
        if not message:
            sys.exit()
        request: dict[str, Any] = json.loads(message)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            tests.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        [log] = descriptors
        pid = os.fork()
        if not pid:
            tests.close()
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            return request
        os.close(log)
        tests.send(b"%d" % pid)


def _main(descriptor: int) -> int:
    from riverbed.server import main
    from riverbed.server.commands import load_commands

    load_commands()  # as each server does at its start
    # An interrupt from a terminal reaches tests, nursery and servers; it is the tests that end the nursery.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = _wait_for_birth(socket.socket(fileno=descriptor))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith(_PASSED_ON)]:
        del os.environ[name]
    os.environ.update(request["environment"])
    sys.argv[:] = [main.__file__, *request["words"]]
    return main.main()


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
