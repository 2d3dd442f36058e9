"""Libraries in C that are loaded into a server and its children by LD_PRELOAD."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

GCC_MISSING: Final = "gcc is not installed and this compiles a library with it; run: sudo apt-get install -y gcc"


def compile_library(source: Path, directory: Path) -> Path:
    """Compile `source` in `directory`; AssertionError when there is no compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise AssertionError(GCC_MISSING)
    library = directory / f"{source.stem}.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
