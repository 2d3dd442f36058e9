"""What a follower and its applier need of their server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.replication.replacement import Replacement


@dataclass(frozen=True, slots=True)
class Needs:
    """What a follower needs of its server.

    `changed` is called when the state of the link has changed, `applied` when something of the primary is in our log.
    `damage_met` has the tables mended, `over` gives a link what is between it and the socket.  `is_writing_ahead` says
    that rows are put into the tables in turns, for a checkpoint that is about to begin: what the primary sends can wait
    for that, so that it changes none of the rows again.  It waits as well while `is_disk_behind`.
    """

    core: Core
    ticks: Ticks
    tasks: Tasks
    replacement: Replacement
    changed: Callable[[], None]
    applied: Callable[[], None]
    damage_met: Callable[[], None]
    is_writing_ahead: Callable[[], bool]
    is_disk_behind: Callable[[], bool]
    over: Callable[[asyncio.Protocol], asyncio.BaseProtocol]
