"""In the place of Sentinel: asks who is who, promotes a replica when the primary is gone, and corrects the others.

It does what Redis's Sentinel does, alone and faster: INFO, REPLICAOF and CONFIG REWRITE in MULTI, the replica that is
furthest ahead is chosen.  What it believes is where clients go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.raw import Word
from tests.support.simulation.client import Client, ErrorReply, Lost
from tests.support.simulation.history import History
from tests.support.simulation.loop import Loop
from tests.support.simulation.machine import PORT

_PATIENCE_S = 0.7
_MAX_MISSED = 3
_LOOK_S = (0.15, 0.4)

Info = dict[str, str]


class Sentinel:
    """`primary` is the server that clients are sent to; `promotions` are the times at which another one became it."""

    def __init__(
        self, loop: Loop, names: list[str], random: Random, history: History, starts_of: Callable[[str], int]
    ) -> None:
        """`starts_of` tells how often a server was started."""
        self.primary = names[0]
        self._primaries = [(0.0, names[0])]
        self.promotions: list[float] = []
        self.is_settled = False  # every server is there, follows the primary, and has what it has
        self._names = names
        self._loop = loop
        self._random = random
        self._history = history
        self._clients: dict[str, Client] = {}
        self._missed = 0
        self._written: dict[str, str] = {}  # whom each follows, as its configuration says
        self._starts: dict[str, int] = {}  # how often it was started by then
        self._starts_of = starts_of

    async def run(self) -> None:
        while True:
            found = await asyncio.gather(*[self._info(name) for name in self._names])
            infos = {name: info for name, info in zip(self._names, found, strict=True) if info is not None}
            self.is_settled = self._are_settled(infos)
            await self._have_written_down(infos)
            await self._choose(infos)
            for name, info in infos.items():
                if name != self.primary and info.get("master_host") != self.primary:
                    await self._command(name, "REPLICAOF", self.primary, PORT)
            await asyncio.sleep(self._random.uniform(*_LOOK_S))

    async def _have_written_down(self, infos: dict[str, Info]) -> None:
        """FAILOVER changes roles without writing them into the configuration; a server would start with the old one."""
        for name, info in infos.items():
            role = info.get("master_host", "")
            if self._written.get(name) != role:
                self._written[name] = role
                if isinstance(await self._ask_or_none(name, "CONFIG", "REWRITE"), bytes):
                    self._starts[name] = self._starts_of(name)
                else:
                    del self._written[name]

    def _are_settled(self, infos: dict[str, Info]) -> bool:
        offsets = {info["master_repl_offset"] for info in infos.values()}
        are_linked = all(
            info.get("master_host") == self.primary and info["master_link_status"] == "up"
            for name, info in infos.items()
            if name != self.primary
        )
        is_primary = self.primary in infos and infos[self.primary]["role"] == "master"
        return len(infos) == len(self._names) and len(offsets) == 1 and are_linked and is_primary

    async def _choose(self, infos: dict[str, Info]) -> None:
        """Find out who the primary is, or make one."""
        info = infos.get(self.primary)
        if info is None:
            self._missed += 1
            if self._missed > _MAX_MISSED:
                await self._promote(infos)
            return
        self._missed = 0
        if info["role"] == "master":
            return
        other = info["master_host"]
        if infos.get(other, {}).get("role") == "master":  # it has handed over
            if any(self._starts.get(known) != self._starts_of(known) for known in (self.primary, other)):
                self.promotions.append(self._history.now)  # or a start has brought an old configuration back
            self._is_primary(other)
        elif not any(its["role"] == "master" for its in infos.values()):
            await self._promote(infos)

    async def _promote(self, infos: dict[str, Info]) -> None:
        replicas = {name: int(info["slave_repl_offset"]) for name, info in infos.items() if info["role"] == "slave"}
        if not replicas:
            return
        best = max(sorted(replicas), key=lambda name: replicas[name])
        self._history.note("sentinel", f"promotes {best} at {replicas[best]}, of {replicas}")
        self.promotions.append(self._history.now)
        is_done = await self._command(best, "REPLICAOF", "NO", "ONE")
        self.promotions.append(self._history.now)
        if is_done:
            self._missed = 0
            self._is_primary(best)

    def _is_primary(self, name: str) -> None:
        if name != self.primary:
            self._history.note("sentinel", f"{name} is the primary")
            self.primary = name
            self._primaries.append((self._history.now, name))

    def may_have_lost(self, machine: str, told_at: float) -> bool:
        """Whether what `machine` said then may be lost: another one was promoted afterwards, or was it already."""
        was_primary = [name for since_s, name in self._primaries if since_s <= told_at][-1]
        return machine != was_primary or any(at >= told_at for at in self.promotions)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _info(self, name: str) -> Info | None:
        reply = await self._ask_or_none(name, "INFO", "replication")
        if not isinstance(reply, bytes):
            return None
        return dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)

    async def _command(self, name: str, *words: Word) -> bool:
        self._history.note("sentinel", f"tells {name} {' '.join(map(str, words))}")
        try:
            client = await self._client(name)
            client.send(("MULTI",), words, ("CONFIG", "REWRITE"), ("EXEC",))
            replies = [await client.receive(_PATIENCE_S) for _ in range(4)]
        except Lost:
            self._clients.pop(name, None)
            return False
        self._history.note("sentinel", f"was told {replies[-1]}")
        return isinstance(replies[-1], list) and not any(isinstance(reply, ErrorReply) for reply in replies[-1])

    async def _ask_or_none(self, name: str, *words: Word) -> Any:
        try:
            return await self._ask(name, *words)
        except Lost:
            return None

    async def _ask(self, name: str, *words: Word) -> Any:
        try:
            return await (await self._client(name)).ask(*words, patience_s=_PATIENCE_S)
        except Lost:
            self._clients.pop(name, None)
            raise

    async def _client(self, name: str) -> Client:
        if name not in self._clients:
            self._clients[name] = await Client.connect(self._loop, name, _PATIENCE_S)
        return self._clients[name]
