"""Which Riverbed this is, in which form it runs, and which Redis it behaves like."""

from __future__ import annotations

import sys
from typing import Final

from riverbed.store import ids

VERSION: Final = "0.1.0"  # pyproject.toml reads it from here
PYTHON_VERSION: Final = sys.version.split()[0]
REDIS_VERSION: Final = "8.8.0"  # reported to clients, so that they use the stream commands of this version
# Whether the modules are compiled that `pyproject.toml` lists for mypyc.  A wheel has all of them compiled, or none.
IS_COMPILED: Final = not str(ids.__file__).endswith(".py")
