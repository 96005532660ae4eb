VENV := .venv
PYTHON ?= python3
STAMP := $(VENV)/.setup-done
BIN := $(VENV)/bin

.PHONY: setup test test-slow test-gpu lint format demo check clean distclean

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) bash scripts/setup.sh $(VENV)
	@touch $@

# The default suite: minutes, any machine.
test: setup
	$(BIN)/python -m pytest -m "not slow and not gpu" --timeout 600

test-slow: setup
	$(BIN)/python -m pytest -m "slow and not gpu" --timeout 1800

test-gpu: setup
	$(BIN)/python -m pytest -m gpu --timeout 1800

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

# The main job on the bundled examples: minutes on two cores.
demo: setup
	$(BIN)/python -m cuda_agent demo

check: lint test

clean:
	rm -rf build dist cuda-agent-out .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
