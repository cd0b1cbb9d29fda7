# Two words to learn: `make demo` shows the main job, `make test` runs the tests. Each sets itself up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTS  := $(VENV)/.ready-for-tests
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# How long each parser is fed random text; the continuous integration takes a minute.
export Q2P_FUZZ_SECONDS ?= 5

.PHONY: help setup demo test check format bench docs clean

help:
	@echo "make demo    the main job, end to end, on the embedded graph"
	@echo "make test    all tests (benchmark data: set Q2P_DATA)"
	@echo "make check   formatting, lint, types"
	@echo "make format  put the code in shape"
	@echo "make bench   speed, as ratios in one run"
	@echo "make docs    write the generated pages of docs/"
	@echo "make clean   remove the environment and caches"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which with PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	@touch $(READY)

# The tests also build the embedded graph anew and run the CUDA kernels in an interpreter: 180 and 290 MB that nothing
# else needs.
$(TESTS): $(READY)
	$(INSTALL) '.[dev,atlas,kernels]'
	@touch $(TESTS)

demo: setup
	$(BIN)/q2p demo

# Two processes share two cores, so each has one thread: with more they would wait for each other.
test: $(TESTS)
	@test -n "$$Q2P_DATA" || echo "*** Q2P_DATA is not set: the tests that need benchmark data are SKIPPED ***"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/q2p bench exact --out benchmarks/results
	$(BIN)/q2p bench sample --out benchmarks/results
	$(BIN)/q2p bench import --out benchmarks/results
	$(BIN)/q2p bench train --device cpu --out benchmarks/results
	$(BIN)/q2p bench evaluate --device cpu --out benchmarks/results
	$(BIN)/q2p bench answer --device cpu --out benchmarks/results

docs: setup
	$(BIN)/python -m typer query2particles.cli utils docs --name q2p --output docs/commands.md
	$(BIN)/q2p report

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests atlas -name __pycache__ -type d -prune -exec rm -rf {} +
