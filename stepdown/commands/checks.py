"""What several commands check before they work, each with a sentence about the option."""

from pathlib import Path

from stepdown.artifacts import require_free


def check_seed(seed: int) -> None:
    """Refuse a seed that is none."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed: expected 0 to {2**32 - 1}, got {seed}.")


def check_outputs(json: Path | None, figures: Path | None) -> None:
    """Refuse places that cannot be written to, before hours of work."""
    if json is not None and not json.parent.is_dir():
        raise FileNotFoundError(
            f"--json: expected a file in an existing folder, got {json}; make the folder."
        )
    if figures is not None:
        require_free(figures)


def name_models(option: str, paths: tuple[Path, ...], kinds: list[str]) -> dict[str, Path]:
    """Folders by their kind of model where it is the only one, else by their own names."""
    if not paths:
        raise ValueError(
            f"--{option}: expected at least one folder of stepdown {option} fit, got none."
        )
    named = {}
    for path, kind in zip(paths, kinds, strict=True):
        name = kind if kinds.count(kind) == 1 else path.resolve().name
        if name in named:
            raise ValueError(
                f"--{option}: expected folders with different names, got {name!r} twice."
            )
        named[name] = path
    return named
