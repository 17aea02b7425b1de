"""Pictures that several tests look at, drawn once."""

import pytest

from stepdown.report.comparison_figures import draw_comparison
from tests.report.comparisons import comparison


@pytest.fixture(scope="session")
def drawn() -> dict[str, bytes]:
    """All pictures of the comparison whose numbers are known by hand."""
    return draw_comparison(comparison())
