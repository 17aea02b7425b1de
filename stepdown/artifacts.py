"""Saved things: a folder of plain files and a manifest that is checked before use.

Arrays are safetensors, tables are Parquet, settings are JSON; nothing is ever unpickled.
`manifest.json` lists size and SHA-256 of every file and says how the folder came about. It
also carries its own digest, so that a flipped bit anywhere is found. Digests guard against
accidents, not against an author who lies.

A folder is written beside its place and renamed once complete: it is there whole or not at all.
Dates and versions live in the manifest alone, so the same content gives the same data files.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from stepdown import __version__

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS, CONFIG, NUMBERS = "arrays.safetensors", "config.json", "numbers.json"

_KEYS = {"format", "kind", "about", "files", "sha256"}
_LONGEST_MANIFEST = 16 * 2**20  # bytes; ours have some kilobytes
_DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

Content = bytes | Callable[[Path], object]  # what a file holds, or who writes it there
Tree = TypeVar("Tree")
Config = TypeVar("Config")


class ArtifactError(ValueError):
    """A saved thing is damaged, foreign or not what was asked for."""


def write_folder(
    path: Path, files: Mapping[str, Content], *, kind: str, about: Mapping[str, Any]
) -> None:
    """Write all files and the manifest to a new folder, or nothing at all."""
    for name in files:
        _check_name(name)
    with _staged(path) as folder:
        for name, content in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            else:
                content(file)
        written = _list_files(folder)
        if set(written) != set(files):
            raise ArtifactError(f"expected the files {sorted(files)}, got {sorted(written)}.")
        entries = {name: _describe(file) for name, file in written.items()}
        manifest = {"format": FORMAT, "kind": kind, "about": dict(about), "files": entries}
        sealed = manifest | {"sha256": _digest(manifest)}
        (folder / MANIFEST).write_bytes(to_json(sealed))
        _publish(folder, Path(os.path.realpath(path)))


def require_free(path: Path) -> None:
    """Refuse an output folder that exists or cannot be made, before hours of work."""
    with _staged(path):
        pass


def check_folder(path: Path, kind: str) -> dict[str, Any]:
    """Verify every file of a saved folder and return its manifest."""
    manifest = _read_manifest(path, kind)
    listed = manifest["files"]
    found = _list_files(path)
    found.pop(MANIFEST, None)
    for name in listed:
        _check_name(name)
    if missing := sorted(set(listed) - set(found)):
        raise ArtifactError(f"{path}: expected {missing[0]}, which is missing.")
    if foreign := sorted(set(found) - set(listed)):
        raise ArtifactError(f"{path}: expected only listed files, got {foreign[0]}; remove it.")
    for name, file in found.items():
        if _describe(file) != listed[name]:
            raise ArtifactError(
                f"{file}: expected the content that was saved, got other bytes; "
                "the file is damaged or was changed, restore or make it again."
            )
    return manifest


def save_module(
    path: Path, module: eqx.Module, *, config: object, kind: str, seed: int | None = None
) -> None:
    """Save the arrays and numbers of a module with the config that built it."""
    arrays, numbers = {}, {}
    for name, leaf in _named_leaves(module):
        if isinstance(leaf, (jax.Array, np.ndarray)):
            arrays[name] = leaf
        elif isinstance(leaf, (bool, int, float)):
            numbers[name] = leaf
        elif isinstance(leaf, (complex, np.generic)):
            raise ArtifactError(f"{name}: expected an array or a plain number, got {leaf!r}.")
    files = {
        ARRAYS: arrays_to_bytes(arrays),
        NUMBERS: to_json(numbers),
        CONFIG: to_json(config_to_dict(config)),
    }
    write_folder(path, files, kind=kind, about=provenance(config=config, seed=seed))


def load_module(path: Path, like: Tree, *, kind: str, finite: bool = True) -> Tree:
    """Load a module that has the structure, shapes and dtypes of `like`.

    `like` is built from the saved config and may come from `eqx.filter_eval_shape`. Functions
    and static fields are taken from it, arrays and numbers from the folder.
    """
    check_folder(path, kind)
    saved: dict[str, Any] = {**arrays_from_bytes((path / ARRAYS).read_bytes())}
    saved |= json.loads((path / NUMBERS).read_bytes())
    wanted = {name: leaf for name, leaf in _named_leaves(like) if _is_saved(leaf)}
    if odd := sorted(set(saved) ^ set(wanted)):
        where = "the file" if odd[0] in saved else "the module"
        raise ArtifactError(
            f"{path}: expected the same names on both sides, {odd[0]} is only in {where}."
        )
    loaded = {name: _fit(saved[name], leaf, f"{path}: {name}") for name, leaf in wanted.items()}
    if finite and (odd := [n for n, x in loaded.items() if not np.all(np.isfinite(x))]):
        raise ArtifactError(f"{path}: expected finite numbers, got NaN or infinity in {odd[0]}.")
    leaves = [loaded.get(name, leaf) for name, leaf in _named_leaves(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def load_config(path: Path, config: type[Config], *, kind: str) -> Config:
    """Rebuild the config dataclass that a folder was saved with."""
    check_folder(path, kind)
    stored = json.loads((path / CONFIG).read_bytes())
    rebuilt = config_from_dict(stored, config, str(path / CONFIG))
    if config_to_dict(rebuilt) != stored:
        raise ArtifactError(f"{path / CONFIG}: expected a {config.__name__}, got other values.")
    return rebuilt


def arrays_to_bytes(arrays: Mapping[str, np.ndarray | jax.Array]) -> bytes:
    """Arrays in safetensors form; the same arrays give the same bytes."""
    for name, array in arrays.items():
        if str(array.dtype) not in _DTYPES:
            raise ArtifactError(
                f"{name}: expected bool, int, float16, float32 or float64, got {array.dtype}."
            )
    # safetensors reads memory as it lies, hence the order; sorted names make the bytes unique.
    plain = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    return safetensors.numpy.save(plain)


def arrays_from_bytes(data: bytes) -> dict[str, np.ndarray]:
    """Arrays from safetensors bytes, or an `ArtifactError`."""
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ArtifactError(f"expected safetensors arrays, got other bytes ({error}).") from error


def provenance(
    *, config: object, seed: int | None = None, command: str | None = None
) -> dict[str, Any]:
    """How a thing came about: settings, seed, versions, commit, device, date, command.

    `config` is a config dataclass, or plain values already.
    """
    packages = ("jax", "jaxlib", "equinox", "numpy")  # we may run from a checkout, not installed
    line = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {
        "command": command or line,
        "config": config_to_dict(config) if dataclasses.is_dataclass(config) else config,
        "seed": seed,
        "versions": {"python": platform.python_version(), "stepdown": __version__}
        | {name: version(name) for name in packages},
        "commit": _commit(),
        "device": jax.devices()[0].device_kind,
        "machine": platform.machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def to_json(value: object, *, nan: bool = False) -> bytes:
    """Plain values as JSON, the same bytes for the same values.

    NaN and infinity are refused unless `nan` says that readers expect them.
    """
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=nan, default=_from_array)
    return f"{text}\n".encode()


def _from_array(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"expected plain values, got {value!r}.")


def config_to_dict(config: object) -> dict[str, Any]:
    """A config dataclass as plain JSON values."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"expected a config dataclass, got {config!r}.")
    return json.loads(json.dumps(dataclasses.asdict(config), default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if callable(value) and hasattr(value, "__qualname__"):  # a row of a table names its functions
        return f"{value.__module__}.{value.__qualname__}"
    raise TypeError(f"expected plain values in a config, got {value!r}.")


def config_from_dict(stored: Any, config: type[Config], where: str) -> Config:
    """Rebuild a config dataclass from plain JSON values."""
    hints = typing.get_type_hints(config)
    names = {field.name for field in dataclasses.fields(typing.cast(Any, config))}
    if not isinstance(stored, dict):
        raise ArtifactError(f"{where}: expected the fields {sorted(names)}, got {stored!r}.")
    if odd := sorted(set(stored) ^ names):
        raise ArtifactError(
            f"{where}: expected the fields {sorted(names)}, got a difference in {odd[0]}. It was "
            "saved by another version of stepdown: make it again."
        )
    values = {}
    for name, value in stored.items():
        if dataclasses.is_dataclass(hints[name]):
            values[name] = config_from_dict(value, typing.cast(type, hints[name]), where)
        elif hints[name] is Path:
            values[name] = Path(value)
        else:
            values[name] = _to_tuples(value)
    return config(**values)


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = [(jax.tree_util.keystr(path, simple=True, separator="."), x) for path, x in flat]
    if len(dict(named)) < len(named):
        raise ArtifactError("expected leaves with different names; rename a key of the module.")
    return named


def _is_saved(leaf: object) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct, bool, int, float))


def _fit(saved: Any, like: Any, where: str) -> Any:
    """The saved leaf in the form of `like`, or an error if shape or dtype differ."""
    if isinstance(like, (bool, int, float)) or not isinstance(saved, np.ndarray):
        if type(saved) is not type(like):
            kinds = type(like).__name__, type(saved).__name__
            raise ArtifactError(f"{where}: expected {kinds[0]}, got {kinds[1]}.")
        return saved
    if (saved.shape, saved.dtype) != (like.shape, like.dtype):
        raise ArtifactError(
            f"{where}: expected {like.dtype}{list(like.shape)}, "
            f"got {saved.dtype}{list(saved.shape)}; load it with the config it was saved with."
        )
    return saved if isinstance(like, np.ndarray) else jnp.asarray(saved)


@contextlib.contextmanager
def _staged(path: Path) -> Iterator[Path]:
    """A folder beside `path` that is renamed to it inside the block, or vanishes."""
    path = Path(os.path.realpath(path))
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(
            f"expected a new or empty folder, got {path}, which exists; "
            "choose another one or remove it first."
        )
    made = [parent for parent in path.parents if not parent.exists()]
    folder = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        _make(folder, path)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):  # it holds the result
                parent.rmdir()


def _make(folder: Path, path: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise OSError(
            f"expected a place to write, got {path}: {error.strerror}; choose another folder."
        ) from error


def _publish(folder: Path, path: Path) -> None:
    """Publish a folder at once, after its content has reached the disk."""
    for inner in [*folder.rglob("*"), folder]:
        _sync(inner)
    folder.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_name(name: str) -> None:
    pure = PurePosixPath(name)
    plain = str(pure) == name and not pure.is_absolute() and ".." not in pure.parts
    if not plain or name in (".", MANIFEST) or any(c in name for c in "\\:\0"):
        raise ArtifactError(f"expected a file name inside the folder, got {name!r}.")


def _list_files(folder: Path) -> dict[str, Path]:
    """Regular files by name; a link or a device has no place in a saved folder."""
    files = {}
    for entry in sorted(folder.rglob("*")):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            raise ArtifactError(f"{entry}: expected a plain file, got a link or a device.")
        if entry.is_file():
            files[entry.relative_to(folder).as_posix()] = entry
    return files


def _describe(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"size": file.stat().st_size, "sha256": digest}


def _read_manifest(path: Path, kind: str) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file() or file.is_symlink():
        raise ArtifactError(f"{path}: expected a folder with a {MANIFEST}, found none.")
    if file.stat().st_size > _LONGEST_MANIFEST:
        raise ArtifactError(f"{file}: expected a short manifest, got {file.stat().st_size} bytes.")
    try:
        text = file.read_bytes().decode()
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file}: expected JSON, got something else ({error}).") from error
    _check_manifest(manifest, text, file)
    if manifest["kind"] != kind:
        raise ArtifactError(f"{path}: expected a saved {kind}, got a saved {manifest['kind']}.")
    return manifest


def _check_manifest(manifest: Any, text: str, file: Path) -> None:
    if not isinstance(manifest, dict) or set(manifest) != _KEYS:
        raise ArtifactError(f"{file}: expected the fields {sorted(_KEYS)}, got other ones.")
    if manifest["format"] != FORMAT:
        raise ArtifactError(f"{file}: expected format {FORMAT}, got {manifest['format']!r}.")
    # The exact text is compared too: a flipped bit in a blank could leave the values unchanged.
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    if manifest["sha256"] != _digest(body) or text.encode() != to_json(manifest):
        raise ArtifactError(f"{file}: expected the manifest that was saved, got a changed one.")
    if not isinstance(manifest["files"], dict):
        raise ArtifactError(f"{file}: expected files with digests, got {manifest['files']!r}.")


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(manifest)).hexdigest()


def _commit() -> str | None:
    """Commit of the sources, `+changes` if they differ from it, None outside a checkout."""
    source = Path(__file__)

    def ask(*words: str) -> str:
        run = subprocess.run(
            ["git", "-C", source.parent, *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return run.stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", source.name)  # not the checkout of someone else
        return ask("rev-parse", "HEAD") + ("+changes" if ask("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None
