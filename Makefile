# Two commands do everything: `make demo` and `make test`. The virtual environment is made on first use.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Most tests wait for processes most of the time, so more of them run at once than there are cores here. Long ones wait
# less. JOBS=0 and LONG_JOBS=0 run them one after the other.
JOBS ?= 4
LONG_JOBS ?= 3
PYTEST := $(BIN)/pytest --dist worksteal --durations=15
# Files that do not come from here must not decide how tests run.
unexport SHOAL_COORDINATOR SHOAL_TOKEN_FILE SHOAL_WORKER SHOAL_LAUNCHER
# Tests start thousands of processes: each would compile the package anew, for a sixth of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long campaign lint types unit install packages dist clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard src/shoal/native/*)
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not installed; set PYTHON= to a Python 3.11 or newer"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/shoal run -n 4 --spares 1 --chaos "kill worker at step 100" examples/count_samples.py --pause 0.03

# The pages as a site, in site/. A warning, such as a link that leads nowhere, fails it.
.PHONY: docs
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Lint and types use the cores that tests leave idle while they wait for processes.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j3 lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(PYTEST) -n $(JOBS) -m "not long" --hypothesis-profile=quick

# The real things that jobs run on in long tests: sshd, Slurm, Java for Spark, a browser.
packages:
	.ci/packages

# Property-based tests with four times the examples; the contracts and what collectives are made of a second time without
# the C extension; then what takes long.
test-long: $(STAMP) packages
	$(PYTEST) -n $(JOBS) -q -m "hypothesis and not long"
	SHOAL_NATIVE=0 $(PYTEST) -n $(JOBS) -q -m "not long" tests/contracts tests/unit/collectives tests/unit/transport
	$(PYTEST) -n $(LONG_JOBS) -m long

# Sixty jobs over all strategies and 500 signals, which takes about half an hour; OPTIONS="--jobs 6 --signals 50" for less.
campaign: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m campaign $(OPTIONS)

# A source package, and a wheel that is built from it. The wheel is for this Python and kind of machine: it has the C
# extension where a compiler is here. Whoever installs the source package compiles it, or goes without.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
