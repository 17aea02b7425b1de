"""A simulated cohort as a folder, with its truth, a card and a picture; whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepdown.artifacts import CONFIG, Content, config_to_dict, provenance, to_json, write_folder
from stepdown.handover import Cohort
from stepdown.patients.cohort import CohortConfig, Latents
from stepdown.records import files
from stepdown.report.cohort_report import dataset_card, digests
from stepdown.report.patient_figures import draw_overview

CARD, OVERVIEW = "card.md", "overview.png"
FLOW = "flow.png"  # of stays into an imported cohort


def write_simulated(
    out: Path,
    simulated: tuple[Cohort, Latents],
    recipe: CohortConfig,
    seed: int,
    *,
    extra: dict[str, Content] | None = None,
    words: Sequence[str] = (),
) -> None:
    """A cohort and its truth as a folder; extra files are told in words on the card."""
    cohort, latents = simulated
    extra, outcome = extra or {}, np.asarray(latents.outcome)
    content: dict[str, Content] = {
        files.COHORT: files.to_parquet(files.cohort_table(cohort)),
        files.DEATHS: files.to_parquet(files.death_table(cohort)),
        files.LATENTS: files.latents_to_bytes(latents),
        CONFIG: to_json(config_to_dict(recipe)),
        OVERVIEW: draw_overview(cohort, outcome),
        **extra,
    }
    named = [name for name in content if name.endswith((".parquet", ".safetensors"))]
    content[CARD] = lambda file: file.write_text(
        dataset_card(
            cohort,
            recipe,
            outcome,
            seed=seed,
            extras=words,
            hashes=digests(file.parent, named),
        ),
        encoding="utf-8",
    )
    about = provenance(config=recipe, seed=seed)
    about |= {"latents": files.JUDGING_ONLY, "faults": files.FAULTS in extra}
    write_folder(out, content, kind=files.KIND, about=about)
