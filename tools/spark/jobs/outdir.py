"""A directory of reports: existing reports are refused before the work, new ones are written one by one after it."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.markup import escape

from riverbed.tools.console.console import Failure, failures_explained, results


def new_reports(out: Path, names: Sequence[str], *, overwrite: bool) -> None:
    """Make `out`.  Raises Failure if a report cannot be written there, or exists and may not be replaced."""
    if os.path.lexists(out) and not out.is_dir():
        raise Failure(f"{out} is not a directory")
    with failures_explained(f"write to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out))
    there = [name for name in names if os.path.lexists(out / name)]
    if there and not overwrite:
        raise Failure(f"{out / there[0]} exists; --overwrite replaces it")


def write_reports(out: Path, texts: Mapping[str, str | Iterator[str]]) -> None:
    """Write texts by name, each completely or not at all; a long text comes in lines.  Raises OSError."""
    for name, text in texts.items():
        working = out / f".temp-{secrets.token_hex(6)}"
        try:
            # Keys that are not UTF-8 are escaped already.  A lone surrogate in a path of the user is shown escaped.
            with working.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines([text] if isinstance(text, str) else text)
            working.replace(out / name)
        finally:
            working.unlink(missing_ok=True)


def print_report_path(out: Path | None, name: str) -> None:
    """Print where the report is, or how to get one."""
    path = "--out DIR writes it, --json prints it" if out is None else f"[bold]{escape(str(out / name))}[/]"
    results().print(f"report: {path}")
