"""The published table against itself: its Overall rows follow from its levels."""

from __future__ import annotations

import math

import pytest

from cuda_agent.evals.report.published import published

SIZES = {"level1": 100, "level2": 100, "level3": 50}
MODELS = sorted({row.model for row in published().rows if row.subset == "overall"})


@pytest.mark.parametrize("model", MODELS)
def test_overall_reproduces_from_levels(model: str) -> None:
    rows = {row.subset: row for row in published().rows if row.model == model}
    for name in ("pass_rate", "faster_eager", "faster_compile"):
        shares = sum(SIZES[s] * getattr(rows[s], name) for s in SIZES) / 250
        assert getattr(rows["overall"], name) == pytest.approx(shares, abs=1e-9)
    for name in ("geomean_eager", "geomean_compile"):
        # Level means weighted by tasks, as the paper does (not by correct solutions).
        logs = sum(SIZES[s] * math.log(getattr(rows[s], name)) for s in SIZES) / 250
        assert getattr(rows["overall"], name) == pytest.approx(math.exp(logs), abs=0.011)


def test_six_models_and_five_ablations() -> None:
    assert len(MODELS) == 6
    assert sum(row.subset == "ablations" for row in published().rows) == 5
