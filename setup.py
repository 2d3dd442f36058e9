"""Makes the links of `src/riverbed` again where a copy of this repository has lost them, and builds what is native.

An unpacked zip, or a clone with `core.symlinks=false`, has a text file with the target in the place of a link.  In a
source distribution the folders themselves are there.  `pyproject.toml` has the rest.

Native are a module in C, `store/wire/native.c`, and in a wheel also the modules that `pyproject.toml` lists for mypyc.
Without a C compiler the installation is complete all the same: `store/wire` has the module's reference in Python, and
the other modules are interpreted.  RIVERBED_COMPILE in the environment is about mypyc: 0 forbids it, 1 demands it,
`auto`, the default, compiles when mypy and a C compiler are there.

A Python without the global lock (3.13t) has no limited API, and neither module is made for it: all is interpreted.

An editable installation is never compiled: extension modules beside the sources would hide later changes of these.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import customize_compiler, new_compiler
from setuptools.errors import CCompilerError, ExecError

ROOT = Path(__file__).resolve().parent
# Of its own: a wheel takes all that it finds where it is built, extension modules of another build as well.
COMPILED_BUILD = "build/compiled"


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


def has_c_compiler() -> bool:
    """Whether an extension module without content can be compiled and linked."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "empty.c"
        source.write_text("#include <Python.h>\n")
        compiler = new_compiler()
        customize_compiler(compiler)
        compiler.add_include_dir(sysconfig.get_path("include"))
        try:
            compiler.link_shared_object(compiler.compile([str(source)], directory), str(source.with_suffix(".so")))
        except (CCompilerError, ExecError):
            return False
    return True


def can_compile() -> bool:
    """Whether this builds a wheel, and mypyc is wanted and works; when it does not, says why."""
    wanted = os.environ.get("RIVERBED_COMPILE", "auto")
    if "bdist_wheel" not in sys.argv or wanted == "0":
        return False
    if importlib.util.find_spec("mypyc") is None:
        lack = "mypy is not installed"
    elif not has_c_compiler():
        lack = "there is no C compiler that works"
    else:
        return True
    if wanted == "1":
        sys.exit(f"riverbed cannot be compiled: {lack}")
    sys.stderr.write(f"riverbed will be interpreted: {lack}\n")
    return False


def compiled_modules() -> list[Extension]:
    """What mypyc makes of the modules that `pyproject.toml` lists: one library, and a stub for each module.

    With -O1, as a file for each module, and without the names for a debugger: 45 s of a processor and 4 MB.
    """
    from mypyc.build import mypycify

    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["riverbed"]["compiled"]
    files = [f"src/{name.replace('.', '/')}.py" for name in names]
    options = ["--config-file=pyproject.toml", *files]
    return mypycify(options, multi_file=True, opt_level="1", debug_level="0", target_dir=COMPILED_BUILD)


NATIVE = Extension(
    "riverbed.store.wire.native",
    ["src/riverbed/store/wire/native.c"],
    depends=[*map(str, Path("src/riverbed/store/wire/c").glob("*.h"))],
    optional=True,
    py_limited_api=True,
    # Otherwise a function outside of the limited API is found out when the module is loaded, and it is not used then.
    extra_compile_args=["-Werror=implicit-function-declaration"],
)

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.stderr.write("riverbed will be interpreted: its native module needs the global lock, which this Python lacks\n")
    setup()
elif can_compile():
    setup(ext_modules=[NATIVE, *compiled_modules()], options={"build": {"build_base": COMPILED_BUILD}})
else:
    setup(ext_modules=[NATIVE], options={"bdist_wheel": {"py_limited_api": "cp311"}})
