# `make demo` and `make test` are all that a fresh clone needs: each makes the environment first.
#
# PYTHON=...         the interpreter for .venv, where the first fitting one is not wanted
# NVFUSER_PYTHON=... the Python 3.12 for .venv-nvfuser: nvFuser's wheels are for one Python and one PyTorch
# PIP_TORCH_ARGS=... more arguments for the installation of torch, such as an --index-url for
#                    builds without CUDA (a Linux default build brings gigabytes of it)
# RUN=..., BASELINE=... where benchmarks are saved, and which they are compared with
# PYTEST_ARGS=...    more arguments for pytest, such as -k NAME or --update-golden

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?=
PIP_TORCH_ARGS ?=
PYTEST_ARGS ?=
RUN ?= .benchmarks/latest.json
BASELINE ?= .benchmarks/baseline.json

VENV := .venv
NVFUSER := .venv-nvfuser
NVFUSER_PYTHON ?= python3.12
BIN := $(VENV)/bin
READY := $(VENV)/ready
TORCH := $(shell grep -m 1 '^torch==' constraints.txt)
EXTRAS := test,lint,bench,docs,pretty
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)
FITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# Each test process computes on one thread, so that two share a small machine well.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PARALLEL := -n 2 --dist worksteal --ignore=tests/perf

.PHONY: help demo test quick test-nvfuser gpu docs lint format bench bench-table bench-compare clean

help:  ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 15

demo: $(READY)  ## compile a small model and read it
	$(BIN)/python examples/demo.py

test: $(READY)  ## all tests that need no GPU, but for tests/perf
	$(PYTEST) $(PARALLEL) -m "not gpu" $(PYTEST_ARGS)

quick: $(READY)  ## the tests without the slow ones
	$(PYTEST) $(PARALLEL) -m "not gpu and not slow" $(PYTEST_ARGS)

test-nvfuser: $(NVFUSER)/ready  ## the tests of nvFuser's executor, in an environment of their own; needs Python 3.12
	OMP_NUM_THREADS=1 $(NVFUSER)/bin/python -m pytest -n 2 tests/nvfuser tests/executors/test_nvfuser.py $(PYTEST_ARGS)

gpu: $(READY)  ## the tests that need a CUDA device
	$(PYTEST) -m gpu --ignore=tests/perf $(PYTEST_ARGS)

lint: $(READY)  ## ruff and pyright, as CI runs them
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(READY)  ## let ruff repair and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(READY)  ## the pages, into docs/_build/html, with warnings as errors
	$(BIN)/python -m sphinx -q -E -b html -W --keep-going docs docs/_build/html

bench: $(READY)  ## tests/perf, alone on the machine and without verification
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[peers]'
	mkdir -p $(dir $(RUN))
	TRACEMILL_VERIFY=0 $(PYTEST) -m "not gpu" tests/perf --benchmark-json=$(RUN) $(PYTEST_ARGS)

bench-table: $(READY)  ## the table of README.md from the latest benchmarks
	$(BIN)/python -m tests.perf.saved_runs table $(RUN) --into README.md

bench-compare: $(READY)  ## the latest benchmarks against BASELINE=...; fails where a ratio grew
	$(BIN)/python -m tests.perf.saved_runs compare $(BASELINE) $(RUN)

clean:  ## remove all that was made
	rm -rf $(VENV) $(NVFUSER) build dist docs/_build src/*.egg-info .benchmarks .hypothesis .pytest_cache .ruff_cache
	find compiler executors passes printers src tests -name __pycache__ -prune -exec rm -rf {} +

# torch goes first and by its exact version: the default of a package index may be another build.
$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt $(PIP_TORCH_ARGS) '$(TORCH)'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

# nvFuser's wheels name the PyTorch and CUDA that they were built for; with the headers and the run-time compiler of CUDA 13,
# all definitions are compiled also where there is no GPU. About 8 GB. With a GPU, PIP_TORCH_ARGS must say where the build of
# PyTorch with CUDA 13 is.
$(NVFUSER)/ready: pyproject.toml
	@command -v "$(NVFUSER_PYTHON)" >/dev/null || { \
	  echo "nvFuser's wheels are for Python 3.12, and there is no $(NVFUSER_PYTHON). Say where one is:" >&2; \
	  echo "  make test-nvfuser NVFUSER_PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	}
	"$(NVFUSER_PYTHON)" -m venv --clear $(NVFUSER)
	$(NVFUSER)/bin/python -m pip install --quiet $(PIP_TORCH_ARGS) torch==2.10.0
	$(NVFUSER)/bin/python -m pip install --quiet nvfuser-cu130-torch210 \
	  'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*'
	$(NVFUSER)/bin/python -m pip install --quiet -e '.[test,bench,pretty]'
	@touch $@

$(BIN)/python:
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c '$(FITS)' 2>/dev/null; then \
	    echo "$$candidate -m venv $(VENV)"; \
	    exec "$$candidate" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "tracemill needs Python 3.11 or newer with the venv and ensurepip modules." >&2; \
	echo "Tried: $(CANDIDATES)." >&2; \
	echo "Install one (on Debian: python3 and python3-venv), or say where it is:" >&2; \
	echo "  make $(or $(MAKECMDGOALS),test) PYTHON=/path/to/python3" >&2; \
	exit 1
