# Each target sets up its own environment from nothing. torch comes first and alone, so that the
# script can choose its build: without an NVIDIA GPU, one for CPUs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# CI services set CI: fixed versions are then installed, and their hashes are verified.
LOCKED ?= $(CI)

.PHONY: help setup demo test test-all golden messages check chaos mutations clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready  ## create .venv with a CPU build of torch, fedssl and the tools

.venv/ready: pyproject.toml constraints.txt scripts/install_torch.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(LOCKED),$(BIN)/python scripts/install_locked.py)
	$(BIN)/python scripts/install_torch.py torch==2.13.0 --constraint constraints.txt$(if \
		$(LOCKED), --lock requirements-torch.txt)
	$(PIP) --editable ".[dev]"
	touch $@

.venv/all: .venv/ready
	$(PIP) --editable ".[dev,oracles,simulation]"
	touch $@

demo: setup  ## train the demo: five clients, about two minutes
	$(BIN)/fedssl run demo

test: setup  ## run the quick tests
	$(BIN)/pytest --numprocesses=logical --dist=loadgroup

test-all: setup .venv/all  ## also run the slow tests and the comparisons with other libraries
	$(BIN)/pytest --all --numprocesses=logical --dist=loadgroup

golden: setup  ## check that training gives the recorded bits, and record that this code does
	$(BIN)/pytest --all tests/golden
	$(BIN)/python tests/golden/accept.py

messages: setup  ## record the texts of errors that tests expect, for review
	RECORD_MESSAGES=1 $(BIN)/pytest

check: setup  ## lint, types, layering, style, security and documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layering.py
	$(BIN)/python scripts/check_style.py
	$(BIN)/python scripts/check_security.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

chaos: setup  ## kill runs, fill disks and change bytes: results/chaos.json
	$(BIN)/python -m benchmarks.chaos

mutations: setup  ## remove each protection once: results/mutations.json
	$(BIN)/python -m benchmarks.mutations

clean:  ## remove the environment and the built pages
	rm -rf .venv site
