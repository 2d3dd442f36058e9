"""Writes the columns of a snapshot in a second process, while the first compares the rows of the snapshot's tables.

    riverbed snapshot, or the server's process           python -m riverbed.tools.sidecar.beside
        starts the other            -->                      imports pyarrow, which takes a while
        copies the tables           --  {"path": ...}  -->   writes the files of columns
        compares rows, lists streams,
        writes the manifest         --  {}             -->   writes the manifest of the columns
        gives the snapshot its name <-- {"columns": ...} --

Both take as long as each other, and neither needs what the other makes.  So a snapshot with columns takes little longer
than one without, where there are two processors.  It appears together with its columns.

What only the second process needs is imported there: the first needs no pyarrow.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Self

from riverbed.server.background.child import Reports, Server, work_for_server
from riverbed.store.errors import StoreError
from riverbed.store.layout import COLUMNS_DIRECTORY
from riverbed.store.progress import Progress
from riverbed.store.snapshot.reader import Snapshot, open_snapshot

MODULE: Final = "riverbed.tools.sidecar.beside"
# How often the first process looks whether it is interrupted, and how long it waits for the end of the second.
_LOOK_S: Final = 0.2
_PATIENCE_S: Final = 5.0


class ColumnsBeside:
    """The second process, as the first sees it.  `failure`: why there are no columns, None if there are."""

    def __init__(self, steps: Progress, *, leave_bytes: int = 0) -> None:
        """The disk keeps `leave_bytes` free: rather than that there are no columns."""
        self.failure: str | None = None
        self._steps = steps
        self._leave_bytes = leave_bytes
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        # -P: no package of the working directory is taken for one of ours
        words = [sys.executable, "-P", "-m", MODULE]
        # Were its errors to go where ours go, a server that waits for our end would wait for that of the other too.
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._listener = threading.Thread(target=self._listen, name="columns", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @contextlib.contextmanager
    def beside(self, path: Path, data_bytes: int, time_ms: int) -> Iterator[Callable[[], None]]:
        """Has the columns of the snapshot in `path` written, see `store/snapshot/writer.py`."""
        try:
            about = {"data_bytes": data_bytes, "time_ms": time_ms, "leave_bytes": self._leave_bytes}
            self._order(path=str(path.absolute()), **about)
            yield lambda: self._complete(path)
        except BaseException:
            self._process.kill()  # what it has written is deleted next
            raise
        finally:
            self._end()  # before anyone deletes what it works in

    def _complete(self, path: Path) -> None:
        """Wait for the columns, or take away what there is of them.  Raises what `steps` raises."""
        self._order()
        self.failure = self._failure()
        if self.failure is not None:
            self.failure = self.failure.replace(f"{path.absolute()}/", "")
            self._end()
            shutil.rmtree(path / COLUMNS_DIRECTORY, ignore_errors=True)

    def _failure(self) -> str | None:
        said = COLUMNS_DIRECTORY, 0, 0
        while True:
            with contextlib.suppress(queue.Empty):
                answer = self._answers.get(timeout=_LOOK_S)
                if answer is None:
                    return "their process has ended"
                if "failed" in answer:
                    return str(answer["failed"])
                if "columns" in answer:
                    return None
                if "step" in answer:
                    said = answer["step"], answer["done"], answer["total"]
            self._steps(*said)

    def _order(self, **order: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last answer says why
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._answers.put(json.loads(line))
            except ValueError:  # what Python or a library has printed
                sys.stderr.write(line.decode(errors="backslashreplace"))
        self._answers.put(None)

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._process.stdout.close()


def work(server: Server) -> None:
    """The second process."""
    try:
        fill = import_module("riverbed.tools.sidecar.sidecar").fill_columns_beside
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is not installed: pip install 'riverbed[sql]'") from error
    order = server.listen()
    path = Path(order["path"])

    def rest() -> Snapshot:
        server.listen()
        return open_snapshot(path)

    about = {name: order[name] for name in ("data_bytes", "time_ms", "leave_bytes")}
    fill(path, rest=rest, steps=Reports(server).step, **about)
    server.say(columns=str(path / COLUMNS_DIRECTORY))


if __name__ == "__main__":
    work_for_server(MODULE, work)
