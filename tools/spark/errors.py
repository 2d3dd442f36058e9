"""What the data source refuses, in one line that says what to do.  Spark shows it to the user as it is."""

from __future__ import annotations


class SourceError(Exception):
    """A read or write that cannot be done: an option, a path, a schema, or the data's fault."""


class OptionError(SourceError):
    """An option that is unknown, or has a value it cannot have."""


class DataLossError(SourceError):
    """What was asked for is gone: trimmed, or the snapshot with it."""


class MalformedValueError(SourceError):
    """A value that does not fit its column, in mode FAILFAST."""
