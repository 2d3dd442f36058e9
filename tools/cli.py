"""`riverbed`: look after data directories and servers.  One file for each subcommand; this one lists them.

Exit status: 0 all is well, 1 the command found something wrong, 2 it could not do its work.
"""

from __future__ import annotations

import click

from server.version import VERSION
from tools.check import check
from tools.compact import compact
from tools.dump import dump
from tools.importing import import_
from tools.load import load
from tools.replay import replay
from tools.restore import restore
from tools.snapshot import snapshot
from tools.stat import stat
from tools.top import top


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, "-v", "--version", prog_name="riverbed")
def main() -> None:
    """Look after Riverbed: its data directories, and servers that run."""


main.add_command(check)
main.add_command(compact)
main.add_command(dump)
main.add_command(import_)
main.add_command(load)
main.add_command(replay)
main.add_command(restore)
main.add_command(snapshot)
main.add_command(stat)
main.add_command(top)


if __name__ == "__main__":
    main()
