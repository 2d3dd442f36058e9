"""redis-py's own tests of users, unchanged, against a server of ours.

They come with the sources of the version that is installed, which pip fetches.  `RIVERBED_REDIS_PY_SOURCE` names a
folder that holds these already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import redis

from tests.support.servers import Server

FILE: Final = "tests/test_commands.py"
_OTHER_TYPES: Final = "uses commands of strings"
_MODULES: Final = "uses commands of modules"
LEFT_OUT: Final = {
    "test_acl_cat_with_category": _OTHER_TYPES,
    "test_acl_dryrun": _OTHER_TYPES,
    "test_acl_getuser_setuser": _OTHER_TYPES,
    "test_acl_log": _OTHER_TYPES,
    "test_acl_cat_contain_modules_no_category": _MODULES,
    "test_acl_modules_cat_with_category": _MODULES,
    "test_acl_modules_commands": _MODULES,
    "test_acl_modules_category_commands": _MODULES,
}
RUN: Final = 10


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of redis-py."""
    if "RIVERBED_REDIS_PY_SOURCE" in os.environ:
        return Path(os.environ["RIVERBED_REDIS_PY_SOURCE"])
    place = tmp_path_factory.mktemp("redis-py")
    wanted = f"redis=={redis.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-binary", "redis", "--dest", str(place), wanted],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (
        f"the sources of redis-py could not be fetched; run `pip download --no-deps --no-binary redis {wanted}`, "
        f"unpack them and set RIVERBED_REDIS_PY_SOURCE to that folder\n{done.stderr}"
    )
    (archive,) = place.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive, "-C", place], check=True)
    (found,) = place.glob("redis-*/")
    return found


def test_redis_pys_own_tests_of_users_pass(riverbed: Server, source: Path) -> None:
    deselected = [word for name in LEFT_OUT for word in ("--deselect", f"{FILE}::TestRedisCommands::{name}")]
    url = f"redis://localhost:{riverbed.port}/0"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            FILE,
            "-k",
            "acl",
            "--redis-url",
            url,
            *deselected,
        ],
        cwd=source,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{riverbed.log_tail()}"
    assert re.search(rf"^{RUN} passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout
