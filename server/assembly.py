"""An executor over the store in a directory, opened as the settings say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from riverbed.server.commands.replay import Replayer
from riverbed.server.execution.executor import Executor
from riverbed.store.engine import Engine
from riverbed.store.options import Fsync, Options

if TYPE_CHECKING:
    from pathlib import Path

    from riverbed.server.config.config import Config
    from riverbed.store.options import Clock


class SystemClock:
    """The real one."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


def open_executor(config: Config, directory: Path, clock: Clock | None = None) -> Executor:
    """Open the store at `directory` and an executor over it.  Raises what `Engine.open` does."""
    clock = clock or SystemClock()
    options = Options(
        fsync=Fsync(config.appendfsync),
        map_bytes=config.lmdb_map_size,
        segment_bytes=config.log_segment_bytes,
        load_truncated=config.aof_load_truncated,
        reserve_bytes=config.disk_reserve_bytes,
        node_max_entries=config.stream_node_max_entries,
        node_max_bytes=config.stream_node_max_bytes,
        is_replica=config.replicaof is not None,
    )
    replayer = Replayer(int(clock.time() * 1000))
    engine = Engine.open(directory, execute=replayer.execute, clock=clock, options=options)
    return Executor(config, engine, clock)
