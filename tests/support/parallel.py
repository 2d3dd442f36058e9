"""How pytest-xdist shares out the tests.

A file goes to one worker, because its tests may share a server.  All of Spark goes to one worker, because a session of
Spark takes seconds to start and a gigabyte.  The tests of `tests/system` are long, and go out one by one.  Longest
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


def share_of(test_id: str) -> str:
    """A name for the tests that must go to the same worker as this one."""
    if test_id.startswith(ONE_BY_ONE):
        return test_id
    return TOGETHER if test_id.startswith(TOGETHER) else test_id.partition("::")[0]


class Shares(LoadScopeScheduling):
    """Hands out shares in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # would begin with those of the most tests
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
