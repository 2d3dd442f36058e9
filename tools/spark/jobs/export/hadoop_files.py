"""Files where Spark writes: a local directory, HDFS, an object store, or anything else that Hadoop has a driver for.

Spark writes there through Hadoop, so this module moves, reads and deletes files through Hadoop as well: with the same
credentials, and with the checksum files that Hadoop keeps beside local files.  Names are relative to one directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from riverbed.tools.console.console import Failure
from riverbed.tools.spark.jobs.launch import first_line


class HadoopFiles:
    """One directory, which need not exist yet.  Raises Failure if it cannot be used."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        context: Any = spark.sparkContext
        self.root = root
        self._jvm = context._jvm
        with self._explained():
            path = self._jvm.org.apache.hadoop.fs.Path(root)
            self._fs = path.getFileSystem(context._jsc.hadoopConfiguration())
            # A path without a scheme is in Hadoop's default file system, which need not be local.
            self._root = self._fs.makeQualified(path)
        root_uri = self._root.toUri()
        self._local = Path(str(root_uri.getPath())) if root_uri.getScheme() == "file" else None

    def path(self, name: str) -> str:
        """The URI of a file."""
        return str(self._path(name).toString())

    def exists(self, name: str = "") -> bool:
        with self._explained():
            return bool(self._fs.exists(self._path(name)))

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, sorted; none if the folder does not exist."""
        if not self.exists(folder):
            return []
        with self._explained():
            return sorted(str(status.getPath().getName()) for status in self._fs.listStatus(self._path(folder)))

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """(name, bytes) of all files in a folder and below it, names relative to the folder."""
        with self._explained():
            above = self._fs.makeQualified(self._path(folder)).toUri()
            found = self._fs.listFiles(self._path(folder), True)
            while found.hasNext():
                status = found.next()
                yield str(above.relativize(status.getPath().toUri()).getPath()), int(status.getLen())

    def read(self, name: str) -> bytes:
        with self._explained():
            stream = self._fs.open(self._path(name))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Write a new file.  It exists with all of its bytes or not at all."""
        working = f"{name}.temp-{secrets.token_hex(4)}"
        with self._explained():
            stream = self._fs.create(self._path(working), False)
            stream.write(data)
            stream.close()
        self.move(working, name)

    def move(self, source: str, target: str) -> None:
        """Rename a file.  Raises Failure if the target exists, because Hadoop's drivers differ in this case."""
        if self.exists(target):
            raise Failure(f"{self.path(target)} exists already")
        with self._explained():
            self._fs.mkdirs(self._path(target).getParent())
            if not self._fs.rename(self._path(source), self._path(target)):
                raise Failure(f"cannot move {self.path(source)} to {self.path(target)}")

    def move_again(self, source: str, target: str) -> None:
        """As `move`, behind one that was killed: an object store copies a file, and then deletes the first one."""
        if self.exists(target) and self._size(source) == self._size(target):
            self.delete(source)
        else:
            self.move(source, target)

    def _size(self, name: str) -> int:
        with self._explained():
            return int(self._fs.getFileStatus(self._path(name)).getLen())

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        with self._explained():
            self._fs.delete(self._path(name), True)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep out other processes of this machine.  Only for local directories: object stores have no locks."""
        if self._local is None:
            yield
            return
        self._refuse_links(name)
        path = self._local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"another export to {self.root} is running") from None
            yield
        finally:
            os.close(fd)

    def _refuse_links(self, name: str) -> None:
        """Raise Failure where a link in a local directory may lead anywhere: Hadoop follows it."""
        if self._local is None:
            return
        place = self._local
        for part in Path(name).parts:
            place /= part
            if place.is_symlink():
                raise Failure(f"{place} is a symbolic link, and an export writes to no other place than {self.root}")

    def _path(self, name: str) -> Any:
        self._refuse_links(name)
        # Not Path(String), which takes `a:b` for a scheme and escapes nothing.
        return self._jvm.org.apache.hadoop.fs.Path(self._root, f"./{name}") if name else self._root

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise Failure(f"{self.root}: {first_line(error)}") from error
