"""`riverbed`: work on data directories and look at servers.  Each subcommand has a file; this module lists them.

Exit status: 0 all is well, 1 the command found something wrong, 2 it could not do its work, 130 it was interrupted
(129 by SIGHUP, 143 by SIGTERM), 141 its output was not read to the end.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

from riverbed.server.version import VERSION
from riverbed.tools.console import outputs

# Module and function of each subcommand.  A subcommand is imported on demand: importing all of them takes long.
_COMMANDS: Final = {
    "check": ("riverbed.tools.subcommands.check", "check"),
    "compact": ("riverbed.tools.subcommands.compact", "compact"),
    "compare": ("riverbed.tools.subcommands.compare", "compare"),
    "dump": ("riverbed.tools.subcommands.dump", "dump"),
    "import": ("riverbed.tools.subcommands.importing", "import_"),
    "load": ("riverbed.tools.subcommands.load", "load"),
    "read": ("riverbed.tools.subcommands.read", "read"),
    "replay": ("riverbed.tools.subcommands.replay", "replay"),
    "restore": ("riverbed.tools.subcommands.restore", "restore"),
    "snapshot": ("riverbed.tools.subcommands.snapshot", "snapshot"),
    "spark": ("riverbed.tools.subcommands.spark", "spark"),
    "stat": ("riverbed.tools.subcommands.stat", "stat"),
    "top": ("riverbed.tools.subcommands.top", "top"),
}


class _Subcommands(click.Group):
    """The subcommands in `_COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with outputs.guarded():  # --help and --version are printed here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with outputs.guarded():
            return super().invoke(ctx)


@click.group(
    cls=_Subcommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`riverbed COMMAND --help` explains one, with examples. Exit status: 0 all is well, 1 a defect or a lack "
    "was found and printed, 2 the command could not run, 130 it was interrupted.",
)
@click.version_option(VERSION, "-v", "--version", prog_name="riverbed")
def main() -> None:
    """Work on the data directories of riverbed-server, and look at servers."""


if __name__ == "__main__":
    main(prog_name="riverbed")
