# `make demo` and `make test` need Python >= 3.11 with venv, make and a package index.
# Everything they install goes into .venv; nothing else is touched.

.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
READY := .venv/ready

# Compiled programs are kept between runs, the little ones too: compiling takes longer than running.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

.PHONY: help setup demo docs test browser test-clients clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## create .venv and install the pinned versions

demo: $(READY) ## patients, models, policies, judges, one report, into runs/demo
	$(BIN)/stepdown run demo --out runs/demo

docs: $(READY) ## build the site into .cache/site, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site: .cache/site/index.html"

test: $(READY) browser ## format, lint, types, layering, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright --pythonpath $(BIN)/python & types=$$!; \
	  $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder; tests=$$?; \
	  wait $$types && exit $$tests

# The tests of the page need a browser. Where none is, and none can be installed, they are skipped.
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	    || command -v google-chrome >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
	    chromium fonts-dejavu-core; } >/dev/null 2>&1 \
	    || echo "make: no Chromium could be installed; the tests of the page will be skipped." >&2; \
	else \
	  echo "make: no Chromium here; the tests of the page will be skipped. Install it to run them." >&2; \
	fi

test-clients: .venv-clients/ready ## other people's learners on our environments and exports
	.venv-clients/bin/python -m pytest -W default tests_clients

clean: ## remove .venv, caches and runs/demo
	rm -rf .venv .venv-clients .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
	  runs/demo runs/demo.jobs

# A `python3` found on the path may be older than 3.11 or lack venv, so each is asked.
$(READY): pyproject.toml constraints.txt
	@for python in python3.12 python3.11 python3 python; do \
	  if $$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
	      >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "make: expected Python 3.11 or newer with venv, found none. Install it and try again." >&2; \
	  exit 1; \
	fi; \
	test -x $(BIN)/python || $$found -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e '.[test]'
	@touch $@

# These learners pin versions that differ from ours, so they live apart.
.venv-clients/ready: $(READY) tests_clients/constraints.txt
	test -x .venv-clients/bin/python || $(BIN)/python -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c tests_clients/constraints.txt -e '.[gym]' d3rlpy pytest stable-baselines3 torch
	@touch $@
