"""How many files the server may open: clients, and what else takes a descriptor."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING, Final

from riverbed.server.config.kinds import BadValueError

if TYPE_CHECKING:
    from riverbed.server.config.config import Config

log = logging.getLogger("riverbed")

# Descriptors that are not clients: listeners, log files, tables, the directory's lock, and some to spare.
RESERVED_DESCRIPTORS: Final = 32
# For the files of long replies to transactions, as far as the system allows.
_DESCRIPTORS_OF_REPLIES: Final = 1024


class TooFewDescriptorsError(Exception):
    """Not even one client could be served; the text says so."""


def allow_descriptors(config: Config) -> None:
    """Raise the limit of open files to what `maxclients` needs; lower `maxclients` to what the limit allows.

    Later changes of `maxclients` raise the limit too, or are refused.  Raises TooFewDescriptorsError.
    """
    allowed = _reachable_clients(config.maxclients)
    if not allowed:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        least = RESERVED_DESCRIPTORS + 1
        raise TooFewDescriptorsError(
            f"cannot start: `ulimit -n` allows {limit} open files, and one client takes {least}: allow more"
        )
    if allowed < config.maxclients:
        log.warning(
            "maxclients is %d instead of %d: the system allows no more open files (see ulimit -n)",
            allowed,
            config.maxclients,
        )
        config.set([("maxclients", str(allowed))])

    def check() -> None:
        allowed = _reachable_clients(config.maxclients)
        if allowed < config.maxclients:
            raise BadValueError(
                f"The operating system is not able to handle the specified number of clients, try with {allowed}"
            )

    config.prepare(["maxclients"], check)


def _reachable_clients(wanted: int) -> int:
    """Raise the limit of open files for `wanted` clients if necessary; -> how many clients are possible."""
    descriptors = wanted + RESERVED_DESCRIPTORS + _DESCRIPTORS_OF_REPLIES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= descriptors:
        return wanted
    _raise_limit(soft, descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard), hard)
    reachable, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(wanted, max(0, reachable - RESERVED_DESCRIPTORS))


def _raise_limit(allowed: int, most: int, hard: int) -> None:
    """Raise the limit of open files from `allowed` to `most`, or as far as the system lets us.

    macOS allows less than it says.
    """
    attempt = most
    while allowed < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (attempt, hard))
            allowed = attempt
        except (OSError, ValueError):
            most = attempt - 1
        attempt = (allowed + most + 1) // 2
