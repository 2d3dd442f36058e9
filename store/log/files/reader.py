"""Chooses how one file of the log is read: with the checksums that Riverbed writes, or without, as Redis wrote it."""

from __future__ import annotations

from riverbed.store.disk.files import Files
from riverbed.store.log.files.batch import LogPart
from riverbed.store.log.files.checksummed import ChecksummedReader
from riverbed.store.log.files.part_reader import PartReader
from riverbed.store.log.files.plain import PLAIN_BATCH_COMMANDS, PlainReader


def read_part(files: Files, fd: int, part: LogPart, plain_batch_commands: int = PLAIN_BATCH_COMMANDS) -> PartReader:
    """A reader of the open file `fd`.  A batch of a file that is not ours has about `plain_batch_commands` commands."""
    if part.file.is_checksummed:
        return ChecksummedReader(files, fd, part)
    return PlainReader(files, fd, part, plain_batch_commands)
