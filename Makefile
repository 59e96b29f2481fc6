# Set-up, training, tests and measurements; `setup` is what all of them share.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
STEPS ?= 500_000
# Of `golden`: two commits, the newer of which may be . for the working tree, and names of runs, quick or all.
BASE ?= b3321df
HEAD ?= HEAD
RUNS ?= all

.PHONY: setup train test test-all golden lint bench learn docs

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

train: setup
	$(RUN) scripts/train.py --system=ppo --env=gymnax:CartPole-v1 --steps=$(STEPS) --out=runs/cartpole

test: setup lint
	$(RUN) -m pytest -n 2 --dist=worksteal --durations=50 -m "not slow"

test-all: setup lint
	$(RUN) -m pytest -n 2 --dist=worksteal --durations=50

golden: setup
	$(RUN) tests/golden/compare.py --base=$(BASE) --head=$(HEAD) --runs=$(RUNS)

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: setup
	benchmarks/setup_peers.sh .venv-peers
	$(RUN) benchmarks/run.py --peers=.venv-peers --out=runs/bench

learn: setup
	PYTHON=$(RUN) benchmarks/learn.sh

docs: setup
	$(RUN) -m mkdocs build --strict --quiet
	@echo "site/index.html"
