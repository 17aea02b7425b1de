"""What a result rests on, found in the sources: the modules that a module imports, and theirs.

Imports are read from the syntax tree, those inside functions included; what only type checkers see
is left out. Tables beside a module (`*.json`) count as part of it. The package's own front page
holds names and a version, nothing to compute with, and does not count.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

PACKAGE = "stepdown"
FOLDER = Path(__file__).parent.parent


def digest_of(modules: Iterable[str], folder: Path = FOLDER) -> str:
    """One digest of modules such as "stepdown.twin.fit" and of all that they import of us."""
    return _digest(frozenset(modules), folder)


@functools.cache  # thousands of jobs rest on a few sets of modules
def _digest(modules: frozenset[str], folder: Path) -> str:
    told = hashlib.sha256()
    for name in sorted(closure(modules, folder)):
        for file in _files(name, folder):
            told.update(f"{file.relative_to(folder).as_posix()} ".encode() + _bytes(file))
    return told.hexdigest()


def closure(modules: Iterable[str], folder: Path = FOLDER) -> set[str]:
    """The modules of the package that these import, directly or not, and they themselves."""
    found: set[str] = set()
    waiting = [name for name in modules if _path(name, folder) is not None]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        path = _path(name, folder)
        assert path is not None
        waiting += _imports(path, folder)
    return found


def _path(name: str, folder: Path) -> Path | None:
    """The file of a module of the package; None for others and for the front page."""
    parts = name.split(".")
    if parts[0] != PACKAGE or len(parts) < 2:
        return None
    path = folder.joinpath(*parts[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def _files(name: str, folder: Path) -> list[Path]:
    """A module and the tables that lie beside it."""
    path = _path(name, folder)
    assert path is not None
    tables = [] if path.parent == folder else sorted(path.parent.rglob("*.json"))
    return [path, *tables]


@functools.cache  # as they were when first asked for, should somebody edit them meanwhile
def _bytes(file: Path) -> bytes:
    return file.read_bytes()


@functools.cache
def _imports(file: Path, folder: Path) -> tuple[str, ...]:
    found = []
    for node in _walk(ast.parse(_bytes(file))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(name for name in found if _path(name, folder) is not None)


def _walk(node: ast.AST) -> Iterable[ast.AST]:
    """All nodes but those that only a type checker reads."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)
