"""What mypyc compiles into something else than Python means, found in the source of modules without compiling them.

Seen with mypyc 2.4.1.  What it refuses to compile or to import is not looked for here: bases that are kinds of bytes,
changed class attributes, bases that are interpreted.  A build or an import says so at once.

    rest[f() :]                       calls `f` twice where `rest` is a memoryview or a Sequence
    raise X from error                leaves `__cause__` None
    except X: yield                   leaves X as the context of the next errors, whatever they are, and in memory
    rows = (f(key) for key in keys)   calls `f` for all of them at once: it is a list
    copy.copy(instance)               fails for instances of compiled classes
    weakref.ref(instance)             fails for them as well
    class Own(Compiled)               fails in an interpreted module, also in a test
    patch(Compiled.method, its Final)  changes nothing: calls and constants are bound when it is compiled
    # type: ignore                    types are checked when the program runs: a list that is something else fails
    class Row(NamedTuple): own: Own   crashes if `Own` is compiled and nothing has imported it; a dataclass does so too
    if __name__ == "__main__"         no compiled module can be run by `python -m`
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections.abc import Container, Iterator
from pathlib import Path

from tests.support.servers import ROOT

# Calling these twice changes nothing.
_PURE = {"len", "min", "max", "bisect_left", "bisect_right", "index"}
# Calls that take no instance of a compiled class.
_NOT_FOR_COMPILED = {"copy.copy", "copy.deepcopy", "copy.replace", "weakref.ref", "weakref.proxy", "weakref.finalize"}
_YIELDS = (ast.Yield, ast.YieldFrom, ast.Await)
# Not compiled into classes of their own: these may be inherited from.
_OPEN_BASES = {"Exception", "ValueError", "Protocol", "NamedTuple", "Enum"}


def compiled_modules() -> dict[str, Path]:
    """The modules that `pyproject.toml` lists for mypyc, and their files."""
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["riverbed"]["compiled"]
    return {name: ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in names}


def traps_in_compiled(source: str) -> Iterator[str]:
    """What a module must not have that is compiled, with its line."""
    tree = ast.parse(source)
    unimported = _for_types_alone(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() if _keeps_annotations(node):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                names = {part.id for each in fields for part in ast.walk(each.annotation) if isinstance(part, ast.Name)}
                for name in sorted(names & unimported):
                    yield f"{node.lineno}: {name} is imported for types alone, and a field of {node.name}"
            case ast.Subscript(slice=ast.Slice() as bounds, ctx=ast.Load()):
                calls = (part for part in ast.walk(bounds) if isinstance(part, ast.Call))
                if any(_name(call.func) not in _PURE for call in calls):
                    yield f"{node.lineno}: a call inside a slice"
            case ast.Raise(cause=ast.expr() as cause) if not isinstance(cause, ast.Constant):
                yield f"{node.lineno}: raise ... from"
            case ast.ExceptHandler() if any(isinstance(part, _YIELDS) for part in ast.walk(node)):
                yield f"{node.lineno}: a yield inside of except"
            case ast.Assign(targets=[ast.Name()], value=ast.GeneratorExp()) | ast.Return(value=ast.GeneratorExp()):
                yield f"{node.lineno}: a generator expression that is kept"
            case ast.Compare(left=ast.Name(id="__name__")):
                yield f"{node.lineno}: __name__ is asked for"
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "type: ignore" in token.string:
            yield f"{token.start[0]}: type: ignore"


def traps_in_users(source: str, closed: dict[str, set[str]]) -> Iterator[str]:
    """What an interpreted module must not do with `closed`, the classes of compiled modules by the modules' names."""
    tree = ast.parse(source)
    named = _imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                for base in node.bases:
                    module, _, name = _path(base, named).rpartition(".")
                    if name in closed.get(module, ()):
                        yield f"{node.lineno}: {node.name} inherits from {name}, which is compiled"
            case ast.Call() if _path(node.func, named) in _NOT_FOR_COMPILED:
                yield f"{node.lineno}: {ast.unparse(node.func)}"


def patches_in_vain(source: str, bound: set[str], closed: dict[str, set[str]]) -> Iterator[str]:
    """What a test must not replace: a name in `bound` (`bound_names`), or a part of a closed class."""
    classes = {f"{module}.{name}" for module, names in closed.items() for name in names}
    tree = ast.parse(source)
    named = _imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr" | "object"), args=[target, ast.Constant(str(name)), *_]):
                owner = _path(target, named)
                if owner in classes or f"{owner}.{name}" in bound:
                    yield f"{node.lineno}: {owner}.{name} is replaced in vain"
            case ast.Constant(value=str(name)) if name in bound or name.rpartition(".")[0] in classes:
                yield f"{node.lineno}: {name} is replaced in vain"


def bound_names(sources: dict[str, str], compiled: Container[str]) -> set[str]:
    """The names, with their modules', whose values compiled modules contain: what is Final, and compiled definitions.

    `sources` has all modules.  A name that a compiled module imports is in it for either of the two modules.
    """
    trees = {module: ast.parse(source) for module, source in sources.items()}
    bound: set[str] = set()
    for module, tree in trees.items():
        for node in tree.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if _name(kind) == "Final":
                    bound.add(f"{module}.{name}")
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if module in compiled:
                    bound.add(f"{module}.{name}")
    in_compiled = {name for name in bound if name.rpartition(".")[0] in compiled}
    for module, tree in trees.items():
        imported = {} if module not in compiled else _imported(tree)
        in_compiled |= {f"{module}.{name}" for name, origin in imported.items() if origin in bound}
    return in_compiled


def _imported(tree: ast.Module) -> dict[str, str]:
    """What each imported name leads to."""
    named: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str() as module):
                named |= {one.asname or one.name: f"{module}.{one.name}" for one in node.names}
            case ast.Import():
                named |= {one.asname: one.name for one in node.names if one.asname}
    return named


def _for_types_alone(tree: ast.Module) -> set[str]:
    """The names of our own that a module imports when types are checked, and not when it runs."""
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"]
    imported = _imported(ast.Module([node for block in blocks for node in block], []))
    return {name for name, origin in imported.items() if origin.startswith("riverbed.")}


def _keeps_annotations(node: ast.ClassDef) -> bool:
    """Whether a class has its annotations when the program runs, as objects."""
    decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return "dataclass" in map(_name, decorators) or "NamedTuple" in map(_name, node.bases)


def closed_classes(source: str) -> set[str]:
    """The classes of a module that, compiled, cannot be inherited from by interpreted ones."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {one.name for one in classes if not {_name(base) for base in one.bases} & _OPEN_BASES}


def _name(node: ast.expr) -> str:
    """The last name of `a.b.c` and `a.b.c[d]`; "" of anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _name(value)
    return ""


def _path(node: ast.expr, named: dict[str, str]) -> str:
    """`a.b.c`, as its first name was imported."""
    match node:
        case ast.Name(id=name):
            return named.get(name, name)
        case ast.Attribute(value=value, attr=attr):
            return f"{_path(value, named)}.{attr}"
        case ast.Subscript(value=value):
            return _path(value, named)
    return ""
