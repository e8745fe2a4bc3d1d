# `make demo` and `make test` need only Python 3.11.4 or later; they create .venv.
# To use another interpreter: make demo PYTHON=/path/to/python3.12
# torch's CPU builds (0.2 GB instead of 6): PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first interpreter that is new enough and can create virtual environments.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11, 4))' >/dev/null 2>&1 && { echo $$p; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PHMCTL := $(BIN)/phmctl
MADE := $(VENV)/.made
RUNTIME := $(VENV)/.installed
DEVELOPMENT := $(VENV)/.installed-dev
# Test processes, each with one thread: as many as cores, up to eight.
PROCESSES ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$(( n < 8 ? n : 8 )))

.PHONY: help demo browser-check docs test pytest faults lint format gpu-check wheel-test clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(MADE):
	@if [ -z "$(PYTHON)" ]; then \
		echo "found no Python 3.11.4 or later with venv; set its path: make PYTHON=/path/to/python3" >&2; exit 2; fi
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(RUNTIME): $(MADE) pyproject.toml constraints.txt
	@echo 'Installing into $(VENV): some minutes; for builds of torch without CUDA see the top of the Makefile.'
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEVELOPMENT): $(MADE) pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(RUNTIME)

demo: $(RUNTIME) ## Train a PHM model and two dense ones on the built-in miniature, and compare them: 3 to 8 minutes
	@PHMCTL=$(PHMCTL) bash tools/demo.sh

# pytest waits for processes and files now and then; the other checks, one after the other, use that time.
test: $(DEVELOPMENT) ## Run all checks: ruff, mypy, the documentation, the wheel, pytest
	+@$(MAKE) --no-print-directory -j 2 pytest lint docs wheel-test

pytest: $(DEVELOPMENT)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(PROCESSES)

# Hostile files of each kind.
FUZZ ?= 20000
# Only every EVERY-th write is disturbed; 1 disturbs all.
EVERY ?= 1

faults: $(DEVELOPMENT) ## Fuzz every reader (FUZZ files of each kind), and disturb every EVERY-th write of every command
	PHMCTL_EXPLORE=1 PHMCTL_FUZZ=$(FUZZ) OMP_NUM_THREADS=1 $(BIN)/pytest -s tests/fuzz
	mkdir -p build
	$(BIN)/python -m tests.faults.sweep --every $(EVERY) --jobs $(PROCESSES) --json build/faults.json

gpu-check: $(DEVELOPMENT) ## Run the GPU tests and benchmarks, and write build/gpu-check.json; exit code 2 without a GPU
	$(BIN)/python tools/gpu_check.py --output build/gpu-check.json

lint: $(DEVELOPMENT) ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser-check: $(DEVELOPMENT) ## Compare the pages of examples/browser with Python; needs Node.js and Debian's Chromium
	@PHMCTL=$(abspath $(PHMCTL)) PYTHON=$(abspath $(BIN)/python) bash examples/browser/check.sh

docs: $(DEVELOPMENT) ## Render the documentation and the API reference into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(DEVELOPMENT) ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel-test: $(DEVELOPMENT) ## Build the wheel, install it elsewhere, and check that it has the recipes, cards and the miniature
	@PYTHON=$(BIN)/python bash tools/wheel_test.sh

clean: ## Remove the files that the targets created, except runs/ and data/
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
