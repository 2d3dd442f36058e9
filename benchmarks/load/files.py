"""The limit of open files: a question that has a thousand clients needs more than most systems allow at first."""

from __future__ import annotations

import resource


def allow_files(count: int) -> None:
    """Raise the limit of open files, for this process and the servers it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard)
        )
