# Needs only make and Python 3.11 or newer: every target creates what it needs in .venv.

VENV := .venv
PYTHON_BIN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTEST := $(PYTHON_BIN) -m pytest
PARALLEL := -n auto --dist worksteal
# Spark gives a Python worker ten seconds to start: it has the machine to itself. ARGS may leave one of the two calls without a test.
NOTHING_CHOSEN := [ $$? -eq 5 ]
FAST_RING := $(wildcard tests/unit tests/property tests/conformance tests/architecture)
# mypy refuses a folder without Python in it
TYPED := src tests $(patsubst %/,%,$(sort $(dir $(wildcard benchmarks/*.py examples/*.py scripts/*.py))))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-fast cluster-test lint format bench torture cover build clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv with everything in it (does nothing when pyproject.toml has not changed)
	@echo "penstock: .venv is ready"

$(STAMP): pyproject.toml scripts/setup scripts/setup-java scripts/setup-servers scripts/setup-node tests/node/package-lock.json
	@sh scripts/setup $(VENV)
	@touch $@

demo: $(STAMP) ## watch a broker and a server at work in the terminal, with real clients and kill -9
	@$(PYTHON_BIN) -m penstock.demo $(ARGS)

test: $(STAMP) ## run every test (ARGS="-k word" narrows it)
	$(PYTEST) $(PARALLEL) -m "not spark and not alone" $(ARGS) || $(NOTHING_CHOSEN)
	$(PYTEST) -m "spark or alone" $(ARGS) || $(NOTHING_CHOSEN)

cluster-test: $(STAMP) ## run source, sink and jobs on a real Spark cluster: a master and two workers on this machine
	$(PYTEST) tests/cluster $(ARGS)

test-fast: $(STAMP) ## run the fast ring: unit, property, conformance, architecture
	$(PYTEST) $(PARALLEL) -m "not slow and not crash" $(FAST_RING) $(ARGS)

lint: $(STAMP) ## check rules, layout and types (ruff, mypy --strict)
	$(PYTHON_BIN) -m ruff check .
	$(PYTHON_BIN) -m ruff format --check .
	$(PYTHON_BIN) -m mypy $(TYPED)

format: $(STAMP) ## lay the code out, and fix what can be fixed by rule
	$(PYTHON_BIN) -m ruff check --fix-only .
	$(PYTHON_BIN) -m ruff format .

bench: $(STAMP) ## measure, and print a table and JSON (ARGS are passed on)
	@sh scripts/setup-redis
	@$(PYTHON_BIN) -m benchmarks $(ARGS)

torture: $(STAMP) ## kill a real broker 1,000 times, Spark's driver 200 times, routers under load, and look for what is missing
	PENSTOCK_KILLS=1000 $(PYTEST) -m crash --timeout=14400 tests/integration/test_kill.py $(ARGS)
	PENSTOCK_FIFO_GROUPS=1000 PENSTOCK_FIFO_MESSAGES=200 $(PYTEST) -m crash --timeout=14400 tests/integration/router/test_fifo_proof.py $(ARGS)
	PENSTOCK_RETURNERS=2000 $(PYTEST) -m slow --timeout=14400 tests/integration/hub/test_returning.py $(ARGS)
	PENSTOCK_SPARK_KILLS=100 $(PYTEST) -m crash --timeout=14400 tests/spark/test_sink_kills.py tests/spark/test_archive_kills.py $(ARGS)

cover: $(STAMP) ## run every test with branch coverage; the pages are in htmlcov/
	$(PYTEST) $(PARALLEL) --cov --cov-report=term-missing:skip-covered --cov-report=html $(ARGS)

build: $(STAMP) ## build the wheel into dist/
	$(PYTHON_BIN) -m build --wheel --outdir dist

clean: ## remove what the other targets made, except .venv
	rm -rf dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests $(wildcard benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
