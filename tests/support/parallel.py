"""How pytest-xdist shares out the tests.

A file goes to one worker, because its tests may share a server.  All of Spark goes to one worker, because a session of
Spark takes seconds to start and a gigabyte.  The tests of `tests/system` are long, and go out one by one, but for the
files whose tests share what takes long to make: wheels, an environment, a server for a hundred tests.  Longest
first: `conftest.py` puts Spark and the slow tests in front, so that the workers end at about the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

ONE_BY_ONE: Final = "tests/system/"
TOGETHER: Final = "tests/tools/spark/"
SHARING: Final = frozenset(
    f"{ONE_BY_ONE}{name}.py" for name in ("test_clients", "test_installed", "test_known_weaknesses")
)


def share_of(test_id: str) -> str:
    """A name for the tests that must go to the same worker as this one."""
    file = test_id.partition("::")[0]
    if file.startswith(ONE_BY_ONE) and file not in SHARING:
        return test_id
    return TOGETHER if file.startswith(TOGETHER) else file


class Shares(LoadScopeScheduling):
    """Hands out shares in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # would begin with those of the most tests
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
