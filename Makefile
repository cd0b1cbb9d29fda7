# Two words to learn: `make demo` shows the main job, `make test` runs the tests. Each sets itself up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTS  := $(VENV)/.ready-for-tests
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# The page of `q2p serve`: written in web/, built by Node into the package.
PAGE     := src/query2particles/serve/static/index.html
MODULES  := web/node_modules/.package-lock.json
HAS_NODE := { command -v npm >/dev/null && node -e 'const [a, b] = process.versions.node.split(".").map(Number); \
	process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)'; }
NO_NODE  := Node 20.19 or newer and npm are needed to build the page; everything else works without

# What `make serve` serves; it is trained first where it is missing.
RUN ?= runs/demo
PORT ?= 8000

# How long each parser is fed random text; the continuous integration takes a minute.
export Q2P_FUZZ_SECONDS ?= 5

.PHONY: help setup demo serve page package test browser check format bench docs clean

help:
	@echo "make demo    the main job, end to end, on the embedded graph"
	@echo "make serve   ask questions in the browser, on the embedded graph"
	@echo "make test    all tests (benchmark data: set Q2P_DATA)"
	@echo "make check   formatting, lint, types"
	@echo "make page    build the page of the server (needs Node)"
	@echo "make package wheel and source archive with the page inside, in dist/"
	@echo "make format  put the code in shape"
	@echo "make bench   speed, as ratios in one run"
	@echo "make docs    write the generated pages of docs/"
	@echo "make clean   remove the environment, the built page and caches"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which with PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	@touch $(READY)

# The tests also build the embedded graph anew, run the CUDA kernels in an interpreter, make an index and start a cluster:
# 180, 290, 70 and 240 MB that nothing else needs.
$(TESTS): $(READY)
	$(INSTALL) '.[dev,atlas,kernels,index,cluster]'
	@touch $(TESTS)

demo: setup
	$(BIN)/q2p demo

serve: setup
	@if $(HAS_NODE); then $(MAKE) --no-print-directory page; elif [ ! -f $(PAGE) ]; then echo "*** $(NO_NODE) ***"; fi
	@[ -f $(RUN)/best.safetensors ] || [ -f $(RUN)/joined.json ] || $(BIN)/q2p demo --out $(RUN)
	@[ -f $(RUN)/calibration.json ] || $(BIN)/q2p calibrate $(RUN)
	$(BIN)/q2p serve $(RUN) --port $(PORT)

page: $(PAGE)

$(MODULES): web/package.json web/package-lock.json web/.npmrc
	@$(HAS_NODE) || { echo "$(NO_NODE)"; exit 1; }
	cd web && npm ci --no-progress
	@touch $@

$(PAGE): $(MODULES) web/index.html web/tsconfig.json web/vite.config.ts $(shell find web/src web/public -type f)
	@$(HAS_NODE) || { echo "$(NO_NODE)"; exit 1; }
	cd web && npm run --silent build
	@touch $@

# The wheel is built from the source archive, so that both are complete.
package: $(TESTS) page
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# What the tests of the page need, as far as this machine has it or can get it; what is missing skips them.
browser:
	@if ! $(HAS_NODE); then echo "*** $(NO_NODE): the tests of the page are SKIPPED ***"; \
	elif ! $(MAKE) --no-print-directory $(MODULES); then echo "*** npm failed: the tests of the page are SKIPPED ***"; \
	else $(MAKE) --no-print-directory page && cd web && npm test --silent; fi
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		echo "*** chromium is not installed and cannot be from here: the browser tests are SKIPPED ***"

# Two processes share two cores, so each has one thread: with more they would wait for each other.
test: $(TESTS) browser
	@test -n "$$Q2P_DATA" || echo "*** Q2P_DATA is not set: the tests that need benchmark data are SKIPPED ***"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@if $(HAS_NODE); then $(MAKE) --no-print-directory $(MODULES) && cd web && npm run --silent check; \
	else echo "*** $(NO_NODE): the page is not checked ***"; fi

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	@if [ -f $(MODULES) ]; then cd web && npm run --silent format; fi

bench: setup
	$(BIN)/q2p bench exact --out benchmarks/results
	$(BIN)/q2p bench sample --out benchmarks/results
	$(BIN)/q2p bench import --out benchmarks/results
	$(BIN)/q2p bench train --device cpu --out benchmarks/results
	$(BIN)/q2p bench evaluate --device cpu --out benchmarks/results
	$(BIN)/q2p bench answer --device cpu --out benchmarks/results
	$(BIN)/q2p bench answer --all-methods --device cpu --out benchmarks/results
	$(BIN)/q2p bench index --out benchmarks/results
	$(BIN)/q2p bench serve --out benchmarks/results
	$(BIN)/q2p bench soak --out benchmarks/results

docs: setup
	$(BIN)/python -m typer query2particles.cli utils docs --name q2p --output docs/commands.md
	$(BIN)/q2p report

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info \
		web/node_modules $(dir $(PAGE))
	find src tests atlas -name __pycache__ -type d -prune -exec rm -rf {} +
