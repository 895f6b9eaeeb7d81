# Each target sets up its own environment from nothing. torch comes first and alone, so that the script below can
# choose its build: without an NVIDIA GPU, one for CPUs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test test-all check clean
setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt scripts/install_torch.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python scripts/install_torch.py torch==2.13.0 --constraint constraints.txt
	$(PIP) --editable ".[dev]"
	touch $@

.venv/all: .venv/ready
	$(PIP) --editable ".[dev,oracles,simulation]"
	touch $@

demo: setup
	$(BIN)/fedssl run demo

test: setup
	$(BIN)/pytest

test-all: setup .venv/all
	$(BIN)/pytest --all

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layering.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv site
