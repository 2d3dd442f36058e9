"""Stands in for the process that rewrites the log, see `server/background/log_rewrite.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.background import log_rewrite
from riverbed.store.engine import Engine
from riverbed.store.rewrite.log_from_tables import write_base
from riverbed.store.rewrite.state import pieces


class Rewriter:
    """Does in this process what the process of a rewrite does."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine, self._path = engine, path
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> Rewriter:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def send(self, **order: Any) -> None:
        engine = self._engine
        if "go" in order:
            self._answers.put_nowait({"held": tuple(engine.log.end), "total": 1})
        else:
            with engine.tables.env.begin() as txn:
                files = engine.files
                size = write_base(self._path, pieces(engine.tables, txn), files, offset=order["offset"], now_ms=1)
            self._answers.put_nowait({"entries": 1, "bytes": size.size, "command_bytes": size.command_bytes})

    async def receive(self) -> dict[str, Any]:
        return await self._answers.get()


def rewrite_here(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    """Have rewrites of the log of `engine` made by a `Rewriter`."""

    def worker(tasks: object, module: str, directory: Path, path: Path, size: int) -> Rewriter:
        return Rewriter(engine, path)

    monkeypatch.setattr(log_rewrite, "Worker", worker)
