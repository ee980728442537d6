# setup      a virtual environment in .venv, and Chromium for the browser tests
# test       lint, and the test suite, which builds the documentation strictly
# demo       the guided example        bench      timings
# docs       the documentation         reproduce  every number the documentation quotes
# reproduce-dynamics   figures and numbers on training dynamics, in a minute
# screenshots   the pictures of pages in docs/screens, light and dark
.PHONY: setup test lint style docs demo bench screenshots reproduce reproduce-dynamics

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TYPES  := $(BIN)/basedpyright
STAMP  := $(VENV)/.installed
# Most of what is installed is never imported: what is, is compiled when it is.
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt
# One thread per process: two test workers with a thread pool each get in each other's way. And
# bytecode is kept, whatever the environment says: otherwise each worker, and each process that a
# test starts, compiles everything anew.
SINGLE := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

setup: $(STAMP)

# torch first and by its pinned version, so that no later package chooses another build of it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev,demo,docs]'
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
			--no-install-recommends chromium chromium-driver) >/dev/null 2>&1 \
		|| echo "setup: Chromium could not be installed; tests of the HTML report need it."; \
	else \
		echo "setup: no chromium and chromedriver here; tests of the HTML report need them."; \
	fi
	@touch $@

lint: style
	$(TYPES)

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tests/complexity.py

# Types are checked meanwhile: that takes a minute of one core.
test: style
	@types=$$(mktemp); $(TYPES) > $$types 2>&1 & checking=$$!; \
	$(SINGLE) $(BIN)/python -m pytest -n 2; passed=$$?; \
	wait $$checking; typed=$$?; cat $$types; rm -f $$types; \
	exit $$((passed ? passed : typed))

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo: $(STAMP)
	$(BIN)/python demo/run.py

bench: $(STAMP)
	$(SINGLE) $(BIN)/python benchmarks/run.py

screenshots: $(STAMP)
	$(SINGLE) $(BIN)/python benchmarks/screenshots.py

reproduce-dynamics: $(STAMP)
	$(SINGLE) $(BIN)/python benchmarks/dynamics_figures.py

reproduce: $(STAMP) reproduce-dynamics
	$(SINGLE) $(BIN)/python benchmarks/reproduce.py
	$(SINGLE) $(BIN)/python -m pytest -m slow
	$(SINGLE) $(BIN)/python benchmarks/relu.py campaign --pairs 10000
	$(SINGLE) $(BIN)/python benchmarks/relu.py truth
	$(SINGLE) $(BIN)/python benchmarks/alignment.py barriers origins packages runtimes
	$(SINGLE) $(BIN)/python benchmarks/training.py
	$(SINGLE) $(BIN)/python benchmarks/discovery_learned.py
	$(SINGLE) $(BIN)/python benchmarks/privacy_findings.py
	$(SINGLE) $(BIN)/python benchmarks/privacy_baselines.py
