"""What an attempt cost, summed by hand."""

import json

import pytest

from cuda_agent.evals.spent import spent_on
from cuda_agent.trajectory import Turn, Usage

TURNS = [
    Turn(0, "a", usage=Usage(1000, 100), seconds=1.5),
    Turn(1, "b", usage=Usage(2000, 300, cost_usd=0.25), seconds=2.5),
    Turn(2, "c"),
]


def test_a_turns_own_bill_wins_over_the_prices(tmp_path):
    (tmp_path / "results.jsonl").write_text(
        "".join(json.dumps({"scope": scope}) + "\n" for scope in ("build", "verify", "verify")) + '{"sco'
    )
    spent = spent_on(TURNS, tmp_path, price_in=2.0, price_out=10.0)
    assert (spent.turns, spent.prompt_tokens, spent.completion_tokens) == (3, 3000, 400)
    assert spent.cost_usd == pytest.approx(1000 * 2e-6 + 100 * 10e-6 + 0.25)
    assert spent.seconds == 4.0
    assert spent.judged == {"build": 1, "verify": 2}


def test_without_prices_only_what_was_billed_is_known(tmp_path):
    assert spent_on(TURNS, tmp_path, price_in=None, price_out=None).cost_usd == 0.25
    assert spent_on(TURNS[:1], tmp_path, price_in=None, price_out=None).cost_usd is None
    assert spent_on((), tmp_path / "absent", price_in=1.0, price_out=None).cost_usd is None
