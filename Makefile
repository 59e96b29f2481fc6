# Set-up, training, tests and measurements; `setup` is what all of them share.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python
STEPS ?= 500_000
# For `golden`: two commits (HEAD=. is the working tree), and the runs: names, quick or all.
BASE ?= a0b6903
HEAD ?= HEAD
RUNS ?= all
# For `mutants`: the number of random mutants, and of those judged at once.
COUNT ?= 300
JOBS ?= 2
# For `bench` and `compiled`: a folder with clones of PureJaxRL and, for `compiled`, Stoix (`purejaxrl`, `Stoix`).
PEERS ?=
# For `holding`: beginnings of the rows to run; all that are missing without it.
ROWS ?=
# For `test-newest`: its environment, the command that installs there, and pyproject.toml's packages without bounds.
NEWEST = .venv-newest
NEWEST_PIP = $(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --only-binary=:all:
NEWEST_NAMES = import re, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = [project["optional-dependencies"][name] for name in ("brax", "envpool", "gymnasium", "video", "dev")]; \
	print(*sorted({re.split("[<>=]", name)[0] for names in [project["dependencies"], *extras] for name in names}))

.PHONY: setup train test test-all test-fleet test-newest golden mutants lint bench compiled learn holding docs

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

# Ray on top of the environment, and the one test of a fleet that takes less than a minute.
test-fleet: setup
	$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements-fleet.lock \
		--constraint requirements.lock
	$(RUN) -m pytest -m fleet tests/parallel/test_fleet.py

# gymnax 1.0.1 asks for JAX < 0.12, so it is installed without its dependencies; seaborn and six are two of them.
test-newest:
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST_PIP) $$($(PYTHON) -c '$(NEWEST_NAMES)') seaborn six
	$(NEWEST_PIP) --no-deps gymnax
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(NEWEST)/bin/python -m pip list | grep -iE '^(jax|jaxlib|flax|optax|orbax-checkpoint|chex|brax|gymnax|numpy) '
	$(NEWEST)/bin/python -m pytest -n 2 --dist=worksteal --durations=50 -m "not slow"

golden: setup
	$(RUN) tests/golden/compare.py --base=$(BASE) --head=$(HEAD) --runs=$(RUNS)

mutants: setup
	$(RUN) tests/mutants/run.py --count=$(COUNT) --jobs=$(JOBS)

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: setup
	benchmarks/setup_peers.sh .venv-peers
	$(RUN) benchmarks/run.py --peers=.venv-peers --clones=$(PEERS) --out=runs/bench

# Compilers for GPUs and TPUs that are not there, in an environment of its own: 7 GB of wheels.
compiled: .venv-compiled/.installed .venv-peers/compiled/.installed
	.venv-compiled/bin/python benchmarks/compiled.py
	.venv-compiled/bin/python benchmarks/compiled_peers.py --peers=$(PEERS)
	.venv-compiled/bin/python -m pytest -q tests/training/test_compiled.py tests/test_compiled_peers.py

.venv-compiled/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv-compiled
	.venv-compiled/bin/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
		--requirement requirements.lock --constraint requirements.lock "jax[cuda12]" libtpu
	.venv-compiled/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.venv-peers/compiled/.installed: benchmarks/requirements-compiled.txt .venv-compiled/.installed
	.venv-compiled/bin/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: --no-deps \
		--upgrade --target $(@D) --requirement $<
	@touch $@

learn: setup
	PYTHON=$(RUN) benchmarks/learn.sh

# What is missing in benchmarks/holding.jsonl; ROWS names systems, with commas between.
holding: setup
	$(RUN) benchmarks/holding.py --rows=$(ROWS) --figure=docs/figures/holding.png

docs: setup
	$(RUN) -m sphinx -q -W --keep-going -b html -c docs . site
	@echo "site/docs/index.html"
