# One virtual environment, .venv, serves every target. Options: PYTHON=python3.12, ARGS="…" for `fedrepro reproduce`.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Every test and notebook starts processes of its own; without bytecode each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help reproduce test minimum lab notebooks clean
.DEFAULT_GOAL := help

help: export LISTED = $(MAKEFILE_LIST)
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' < "$${LISTED# }"

reproduce: .venv/.notebooks  ## run every notebook and write tables and figures to results/
	$(BIN)/fedrepro reproduce $(ARGS)

# README.md lists the same commands, for those without make.
test: .venv/.test  ## format, lint, types, tests of the library, then every notebook against its stored outputs
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -p no:nbval -n 2 --dist loadfile --no-loadscope-reorder tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --nbval-lax --nbval-current-env --nbval-sanitize-with tests/nbval.cfg --nbval-cell-timeout 300 notebooks

# An environment of its own, .minimum, anew each time: Linux, about 3 GB to download.
minimum:  ## tests of the library under the lowest versions that pyproject.toml admits
	rm -rf .minimum
	"$(PYTHON)" -m venv .minimum
	.minimum/bin/python .ci/lowest.py test > .minimum/lowest.txt
	.minimum/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' -c .minimum/lowest.txt
	.minimum/bin/python -m pytest -p no:nbval -n 2 --dist loadfile tests

lab: .venv/.notebooks  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

# The same closed room as in the tests (tests/conftest.py), so that the tests find the same outputs.
notebooks: .venv/.notebooks  ## run every notebook with its default parameters and store its outputs in it
	@room=$$(mktemp -d) && trap 'rm -rf "$$room"' EXIT && mkdir "$$room/runs" "$$room/data" && \
	find notebooks -name '*.ipynb' -not -path '*/.*' -not -path '*/optional/*' -print0 | sort -z | \
	FEDREPRO_RUNS="$$room/runs" FEDREPRO_DATA="$$room/data" CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=2 \
	xargs -0 $(BIN)/python -m fedrepro.notebooks.batch

clean:  ## remove the environments and the caches; runs/, data/ and results/ stay
	rm -rf .venv .minimum .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +

# Each stamp is renewed when pyproject.toml changes. The test extra holds the notebooks extra.
.venv/.test: pyproject.toml | .venv/.made
	@echo "installing fedrepro[test] into .venv"
	@$(PIP) -e '.[test]'
	@touch .venv/.test .venv/.notebooks

.venv/.notebooks: pyproject.toml | .venv/.made
	@echo "installing fedrepro[notebooks] into .venv"
	@$(PIP) -e '.[notebooks]'
	@touch $@

.venv/.made:
	@command -v "$(PYTHON)" >/dev/null || { echo "no $(PYTHON) found: name one, as in make test PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "fedrepro needs Python 3.11 or newer, $(PYTHON) is $$("$(PYTHON)" -V 2>&1); name another, as in make test PYTHON=python3.12" >&2; \
		exit 1; }
	"$(PYTHON)" -m venv .venv
	@touch $@
