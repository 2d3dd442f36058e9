"""Which errors of a start may be those of damaged tables, which are made again then."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from riverbed.server.start.repair import _may_be_of_tables
from riverbed.store.errors import CorruptionError, DamagedRowError, ReplayError, VersionError

STATE = Path("/store/state")


@pytest.mark.parametrize(
    ("error", "may_be"),
    [
        (DamagedRowError("a row"), True),
        (CorruptionError("/store/state/data.mdb", None, "broken pages"), True),
        (CorruptionError("/store/appendonlydir/appendonly.aof.1.incr.aof", 17, "damaged batch"), False),
        (ReplayError("a command that the log has does not fit the tables"), True),
        (lmdb.InvalidError("no tables"), True),
        (lmdb.CorruptedError("a page"), True),
        (lmdb.MapFullError("full"), False),
        (VersionError("a newer format"), False),
        (OSError("no permission"), False),
    ],
)
def test_errors_that_other_tables_may_end(error: Exception, may_be: bool) -> None:
    assert _may_be_of_tables(error, STATE) == may_be
