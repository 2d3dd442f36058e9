"""CRC-32C, the checksum of all that is on the disk.

The package `crc32c` imports a command line as well, and for that a fifth of what a start would import without it.  So
its extension module is loaded alone, where it is found.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c

__all__ = ["crc32c"]


def _extension() -> Any:
    """The extension module of the package, or the package."""
    package = PathFinder.find_spec("crc32c")
    folders = None if package is None else package.submodule_search_locations
    found = None if folders is None else PathFinder.find_spec("_crc32c", folders)
    if found is None or found.loader is None:
        import crc32c

        return crc32c
    extension = module_from_spec(found)
    found.loader.exec_module(extension)
    return extension


if not TYPE_CHECKING:
    crc32c = _extension().crc32c
