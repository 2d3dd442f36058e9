"""Riverbed as it is installed elsewhere: built from a copy of the tree, put into an environment of its own, offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import lmdb

from tests.support.servers import ROOT

FOLDERS = ("server", "store", "tools")
_FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
_OFFLINE = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")


NATIVE_SOURCE = ROOT / "store" / "wire" / "native.c"
_NATIVE = ROOT / "store" / "wire" / "native.abi3.so"


def build_native() -> None:
    """Have the native module be what its source is now: where it cannot be built, the tests that need it say so."""
    sources = NATIVE_SOURCE, *(NATIVE_SOURCE.parent / "c").glob("*.h")
    if not _NATIVE.exists() or _NATIVE.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        _run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--force"], ROOT)


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment.  `site` has Riverbed alone; its dependencies are those of the tests' environment."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def site(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.directory)}))

    def program(self, name: str) -> Path:
        """A program that the installation has put there."""
        return self.directory / "bin" / name


def copy_source(directory: Path) -> Path:
    """The files that a build needs, as a clone has them."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copytree(
        ROOT / "src", directory / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    for name in _FILES:
        shutil.copy(ROOT / name, directory)
    return directory


def build_wheel(source: Path, out: Path, **variables: str) -> Path:
    """With so many more variables in the environment; without `RIVERBED_COMPILE` among them it is interpreted.

    Raises CalledProcessError, whose `stderr` has what pip says, when it cannot be built.
    """
    words = ["wheel", *_OFFLINE, "--no-build-isolation", "--wheel-dir", str(out), str(source)]
    _run([sys.executable, "-m", "pip", *words], **({"RIVERBED_COMPILE": "0"} | variables))
    [path] = out.glob("*.whl")
    return path


def build_sdist(source: Path, out: Path) -> Path:
    """The source distribution, made by the build backend as `python -m build` asks it."""
    program = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    out.mkdir()
    _run([sys.executable, "-c", program, str(out)], source)
    [path] = out.glob("*.tar.gz")
    return path


def install(wheel: Path, directory: Path) -> Environment:
    """A new environment with the wheel in it."""
    environment = Environment(directory)
    _run([sys.executable, "-m", "venv", "--without-pip", str(directory)])
    _run([sys.executable, "-m", "pip", "--python", str(environment.python), "install", *_OFFLINE, str(wheel)])
    # Where a path file leads no further path file is read: the tests' own, editable Riverbed is not found there.
    # The tests of the compiled form run in an environment that was made here, and has no dependencies itself.
    (environment.site / "dependencies.pth").write_text(f"{Path(lmdb.__file__).parents[1]}\n")
    return environment


def clean_environment() -> dict[str, str]:
    """Without a word about Python or Spark: what is found is what is installed.

    pip would take Riverbed for installed where PYTHONPATH, which the tests of Spark set, leads to our tree.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK", "VIRTUAL_ENV"))}


def _run(command: list[str], directory: Path | None = None, **variables: str) -> None:
    environment = clean_environment() | variables
    subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=900, check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]), Path(sys.argv[2]).resolve())
