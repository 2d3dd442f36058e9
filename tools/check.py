"""`riverbed check DIR`: does the data keep every promise of the store?

What the promises are, `store.check` knows; here they are told to people.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click
from rich.markup import escape

from store.check import check as violations
from store.errors import CorruptionError, LockedError, StoreError
from tools.console import FAILED, FOUND, notes, seconds_text

# A broken index breaks one promise for every entry; nobody reads a million lines of it.
DEFAULT_LIMIT: Final = 100


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option(
    "--limit", default=DEFAULT_LIMIT, show_default=True, metavar="N", help="Stop after N violations; 0 for all."
)
@click.pass_context
def check(context: click.Context, directory: Path, limit: int) -> None:
    """Walk the data in DIR and report what is wrong with it.

    Changes nothing, and may run beside a server: it sees that one's last checkpoint.  Exit status 0: sound; 1:
    violations, one on each line of the output; 2: DIR cannot be checked.
    """
    console = notes()
    begun = time.monotonic()
    found = 0
    try:
        with console.status(f"checking {escape(str(directory))}"):
            for violation in violations(directory):
                click.echo(str(violation))
                found += 1
                if found == limit:
                    break
    except CorruptionError as error:
        click.echo(str(error))
        found += 1
    except LockedError:
        console.print(f"{escape(str(directory))} is in use; stop its server first")
        context.exit(FAILED)
    except (StoreError, OSError) as error:
        console.print(f"cannot check {escape(str(directory))}: {escape(str(error))}")
        context.exit(FAILED)
    elapsed = seconds_text(time.monotonic() - begun)
    if found:
        more = ", and perhaps more" if found == limit else ""
        console.print(f"[red]{found} violation{'s' * (found > 1)}[/]{more} ({elapsed})")
        context.exit(FOUND)
    console.print(f"[green]sound[/] ({elapsed})")
