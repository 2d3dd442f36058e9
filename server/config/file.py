"""Configuration files: lines of words, as redis.conf has them.

    # a comment is a line of its own
    port 6379
    requirepass "two words"
    include /etc/riverbed/*.conf

Knows lines, quoting and `include`; `settings.py` defines the settings.
"""

from __future__ import annotations

import contextlib
import glob
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from riverbed.store.disk.ownership import give
from riverbed.store.disk.real_files import is_there, read_named_file
from riverbed.store.errors import UnsafeFileError
from riverbed.store.format.text import quote_text, split_text

MAX_INCLUDE_DEPTH: Final = 16
# As of an aclfile, whose lines may be here.
MAX_FILE_BYTES: Final = 16 << 20
PIPE_WAIT_S = 5


class Directive(NamedTuple):
    """One line with a setting.  `name` is in lower case; `place` is for messages, `FILE:LINE`."""

    place: str
    name: str
    words: list[str]


class ConfigFileError(Exception):
    """A file cannot be read, or a line of it cannot be split into words; the text names file and line."""


def read_lines(path: Path) -> list[str]:
    """The lines of `path`, without their ends.  Raises ConfigFileError."""
    try:
        data = read_named_file(path, MAX_FILE_BYTES + 1)
    except UnsafeFileError as error:  # a pipe would keep all waiting, and a device may have no end
        raise ConfigFileError(f"{error}, and no file") from None
    except OSError as error:
        raise ConfigFileError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # the name has a zero byte
        raise ConfigFileError(f"{str(path)!r}: {error}") from None
    return _lines(data, path)


def read_lines_at_start(path: Path) -> list[str]:
    """As `read_lines`; also from a pipe, such as a shell makes of `<(...)`, that is written to soon."""
    try:
        if not path.is_fifo():
            return read_lines(path)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigFileError(f"{path}: {error.strerror}") from None
    data = b""
    with open(fd, "rb", buffering=0) as pipe:
        coming = select.poll()
        coming.register(pipe, select.POLLIN)
        while len(data) <= MAX_FILE_BYTES:
            if not coming.poll(PIPE_WAIT_S * 1000):
                raise ConfigFileError(f"{path} is a pipe to which nothing was written for {PIPE_WAIT_S} seconds")
            piece = pipe.read(MAX_FILE_BYTES)
            if not piece:
                break
            data += piece
    return _lines(data, path)


def _lines(data: bytes, path: Path) -> list[str]:
    if len(data) > MAX_FILE_BYTES:
        raise ConfigFileError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
    return os.fsdecode(data).split("\n")


def directive(line: str, place: str) -> Directive | None:
    """The setting that one line has; None for a comment or a blank line.  Raises ConfigFileError."""
    stripped = line.strip()
    if not stripped or stripped.startswith("#"):
        return None
    try:
        name, *words = split_text(stripped)
    except ValueError:
        raise ConfigFileError(f"{place}: unbalanced quotes in configuration line") from None
    return Directive(place, name.lower(), words)


def directives(lines: list[str], path: Path, depth: int = 0) -> Iterator[Directive]:
    """The settings in `lines` of file `path`, in order, with those of included files in place.  Raises ConfigFileError.

    As in Redis, an included name may be a pattern, and a relative one starts at the current directory.
    """
    for number, line in enumerate(lines, start=1):
        said = directive(line, f"{path}:{number}")
        if said is None:
            continue
        if said.name != "include":
            yield said
            continue
        if depth == MAX_INCLUDE_DEPTH:
            raise ConfigFileError(f"{said.place}: include: more than {MAX_INCLUDE_DEPTH} files inside each other")
        for pattern in said.words:
            # a pattern may match nothing, a plain name must exist
            names = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
            for name in names:
                included = Path(name)
                try:
                    lines_inside = read_lines(included)
                except ConfigFileError as error:
                    raise ConfigFileError(f"{said.place}: include: {error}") from None
                yield from directives(lines_inside, included, depth + 1)


def render_line(name: str, words: list[str]) -> str:
    return " ".join((name, *map(quote_text, words)))


def replace_file(path: Path, lines: list[str]) -> None:
    """Replace `path` so that a crash leaves the old file or the new one.  Raises OSError.

    It keeps its mode, and run by root its user and group.  A file that was deleted is made again, for its owner alone.
    """
    import tempfile

    target = path.resolve()  # a link stays a link
    old = target.stat() if is_there(target) else None
    fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(os.fsencode("\n".join(lines)))
            file.flush()
            os.fchmod(file.fileno(), 0o600 if old is None else stat.S_IMODE(old.st_mode))
            os.fsync(file.fileno())
        if old is not None:
            give(Path(temporary), old)
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
