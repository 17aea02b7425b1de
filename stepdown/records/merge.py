"""Several cohorts as one: the same step and pump, every patient once, no signal invented.

A signal that only some of the cohorts have stays empty in the others, as in a stay that never
measured it. The same stay under two names would be a patient on both sides of a split, so it is
found by its numbers and refused, whatever the names.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from stepdown.handover import Cohort, require_role
from stepdown.records.split import patient_digests
from stepdown.records.stays import PSEUDONYM
from stepdown.signals import columns_with


def merge_cohorts(sources: Mapping[str, Cohort], *, prefix: bool = False) -> Cohort:
    """One cohort, in the order of the sources; `prefix` puts their names before the patients'."""
    cohorts = list(sources.values())
    if len(cohorts) < 2:
        raise ValueError(f"expected two cohorts or more, got {len(cohorts)}.")
    for cohort in cohorts:
        require_role(cohort, "all")
    steps = {name: cohort.minutes for name, cohort in sources.items()}
    if len(set(steps.values())) > 1:
        told = ", ".join(f"{minutes:g} min in {name}" for name, minutes in steps.items())
        raise ValueError(f"expected cohorts of one step, got {told}; export them alike.")
    names = [_names(name, cohort, prefix) for name, cohort in sources.items()]
    _require_once(sources, names)
    columns = columns_with(column for cohort in cohorts for column in cohort.columns)
    shape = (len(sum(names, ())), max(cohort.seen.shape[1] for cohort in cohorts))
    signals = np.full((*shape, len(columns)), np.nan, np.float32)
    level, seen = np.zeros(shape, np.int32), np.zeros(shape, bool)
    first = 0
    for cohort in cohorts:
        count, length = cohort.seen.shape
        rows, own = slice(first, first + count), [columns.index(name) for name in cohort.columns]
        for place, column in enumerate(own):
            signals[rows, :length, column] = np.asarray(cohort.signals)[..., place]
        level[rows, :length], seen[rows, :length] = cohort.level, cohort.seen
        first += count
    fates = [np.zeros(len(x.patient), bool) if x.died is None else x.died for x in cohorts]
    told = any(cohort.died is not None for cohort in cohorts)
    return Cohort(
        signals=jnp.asarray(signals),
        level=jnp.asarray(level),
        seen=jnp.asarray(seen),
        patient=sum(names, ()),
        minutes=cohorts[0].minutes,
        columns=columns,
        died=jnp.asarray(np.concatenate(fates)) if told else None,
    )


def _names(source: str, cohort: Cohort, prefix: bool) -> tuple[str, ...]:
    names = tuple(f"{source}.{name}" for name in cohort.patient) if prefix else cohort.patient
    for name in [name for name in names if prefix and not PSEUDONYM.fullmatch(name)]:
        raise ValueError(
            f"expected names of up to 64 letters, digits, dots or dashes, got {name!r}; give the "
            "folder a shorter, plain name."
        )
    return names


def _require_once(sources: Mapping[str, Cohort], names: Sequence[tuple[str, ...]]) -> None:
    """Refuse a patient who comes twice, by name or by what was recorded."""
    by_name: dict[str, str] = {}
    by_content: dict[str, tuple[str, str]] = {}
    for (source, cohort), own in zip(sources.items(), names, strict=True):
        for name, digest in zip(own, patient_digests(cohort), strict=True):
            if digest in by_content:
                other, there = by_content[digest]
                raise ValueError(
                    f"expected each stay once, got the same first hour for {other!r} of {there} "
                    f"and {name!r} of {source}. A patient must not stand on both sides of a "
                    "split: leave one of the cohorts out, or import it again without this stay."
                )
            if name in by_name:
                raise ValueError(
                    f"expected each patient in one cohort, got {name!r} in {by_name[name]} and "
                    f"{source}. Join the stays before the import if it is one patient; if these "
                    "are two, pass --prefix to put the folder before the name."
                )
            by_name[name], by_content[digest] = source, (name, source)
