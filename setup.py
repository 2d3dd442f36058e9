"""Makes the links of `src/riverbed` again where a copy of this repository has lost them, and builds the native module.

An unpacked zip, or a clone with `core.symlinks=false`, has a text file with the target in the place of a link.  In a
source distribution the folders themselves are there.  `pyproject.toml` has the rest.

Without a C compiler the installation is complete all the same: `store/wire` has the module's reference in Python.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent


def restore_link(link: Path, target: str) -> None:
    """Make `link` a link to the directory `target`; exit with a text when something else is there."""
    if link.is_dir():
        return
    if not (link.parent / target).is_dir():
        sys.exit(f"riverbed cannot be installed: {link} is no folder, and the folder {target} beside it is missing")
    try:
        if link.is_file() and link.read_text().strip() == target:
            link.unlink()
        link.symlink_to(target, target_is_directory=True)
    except OSError as error:
        sys.exit(f"riverbed cannot be installed: {link} must be a link to {target}, and cannot be made one: {error}")


for name in ("server", "store", "tools"):
    restore_link(ROOT / "src" / "riverbed" / name, f"../../{name}")

NATIVE = Extension(
    "riverbed.store.wire.native",
    ["src/riverbed/store/wire/native.c"],
    optional=True,
    py_limited_api=True,
)

setup(ext_modules=[NATIVE], options={"bdist_wheel": {"py_limited_api": "cp311"}})
