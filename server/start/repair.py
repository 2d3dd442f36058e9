"""Mends the tables of a store that did not open, when its log is whole: a start then goes on with the state of the log.

A row that is damaged may be one that the log's tail changes.  A server that runs mends its tables beside its clients
(`background/integrity/repairs.py`); here there are none yet, so that the tool's own repair does it, in place.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from riverbed.server.commands.replay import Replayer
from riverbed.store.errors import TABLE_DAMAGE, CorruptionError, ReplayError, StoreError
from riverbed.store.layout import STATE_DIRECTORY
from riverbed.store.offline.repair import mend_tables

if TYPE_CHECKING:
    from riverbed.server.config.config import Config

log = logging.getLogger("riverbed")


def mended(config: Config, error: Exception) -> bool:
    """Mend the tables if `error`, with which a start has failed, is their damage; -> whether to start again."""
    if not config.auto_repair or not _may_be_of_tables(error, config.dir / STATE_DIRECTORY):
        return False
    log.error("the store did not open: %s", error)
    log.warning("looking whether the log is whole and the tables can be made again of it")
    try:
        return mend_tables(
            config.dir,
            Replayer().execute,
            now_ms=time.time_ns() // 1_000_000,
            load_truncated=config.aof_load_truncated,
            acted=lambda action: log.warning("%s", action),
        )
    except (StoreError, lmdb.Error, OSError) as failure:
        log.error("the tables were not mended: %s", " ".join(str(failure).split()))
        return False


def _may_be_of_tables(error: Exception, state: Path) -> bool:
    if isinstance(error, CorruptionError) and not isinstance(error, TABLE_DAMAGE):
        return Path(error.file).is_relative_to(state)
    return isinstance(error, (ReplayError, lmdb.InvalidError, *TABLE_DAMAGE))
