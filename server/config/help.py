"""What `riverbed-server --help` prints: how to start it, and every setting with its default, unit and purpose."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from riverbed.server.config.kinds import AnySetting, Memory, Section
from riverbed.server.config.settings import SETTINGS

_USAGE = """\
[bold]riverbed-server[/] \\[FILE] \\[--NAME VALUE ...]

A persistent stream store that speaks the Redis protocol.  FILE has the settings as redis.conf does, a line each, and
may include others; --NAME VALUE overrules it.  Sizes take the units k kb m mb g gb.  CONFIG SET changes the settings
that are not marked [cyan]at start[/] while the server runs, and CONFIG REWRITE writes them to FILE.

    riverbed-server --port 6380 --dir /var/lib/riverbed --appendfsync everysec
    riverbed-server /etc/riverbed.conf --loglevel verbose

--help, -h: this text.   --version, -v: which version this is."""


def print_help(console: Console) -> None:
    console.print(_USAGE, highlight=False)
    for section in Section:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), expand=False)
        table.add_column(no_wrap=True, style="bold", min_width=30)
        table.add_column(ratio=1)
        for setting in SETTINGS.values():
            if setting.section is section:
                table.add_row(f"--{setting.name}", _explained(setting))
        console.print()
        console.print(f"[underline]{escape(section.value)}[/]", highlight=False)
        console.print(Padding(table, (0, 0, 0, 2)), highlight=False)


def _explained(setting: AnySetting) -> str:
    default = _default_text(setting)
    if setting.section is Section.FIXED:
        return f"[green]{escape(default)}[/]: {escape(setting.summary)}"
    facts = f"default [green]{escape(default)}[/]"
    if setting.at_start:
        facts += ", [cyan]at start[/]"
    return f"{escape(setting.summary)} ({facts})"


def _default_text(setting: AnySetting) -> str:
    if setting.name == "dir":
        return "the current directory"
    text = " ".join(setting.file_words(setting.default)) or '""'
    return f"{text} {setting.unit}" if setting.unit and not isinstance(setting, Memory) else text
