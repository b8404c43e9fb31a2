# Needs only make and Python 3.11 or newer. Every target installs what it needs into .venv, once: a stamp there records each step.

VENV := .venv
PYTHON_BIN := $(VENV)/bin/python
PYTEST := $(PYTHON_BIN) -m pytest
# delta-rs, Polars and DuckDB bring allocators and threads of their own into a process (docs/decisions/0053-tests-of-the-lake-run-apart.md). Their tests are marked
# `alone`, and the parallel processes, which have gRPC, JavaScript and many servers in them, do not even import them.
LAKE_TESTS := $(wildcard tests/*/pipeline/test_lake_*.py) tests/integration/pipeline/test_topic.py \
	tests/unit/pipeline/test_project.py tests/unit/pipeline/test_recent.py
PARALLEL := -n auto --dist worksteal --ignore=tests/spark --ignore=tests/cluster $(LAKE_TESTS:%=--ignore=%)
# ARGS="-k word" may leave one of several pytest calls without a test, which pytest reports as exit code 5.
NOTHING_SELECTED := [ $$? -eq 5 ]
FAST_FOLDERS := tests/unit tests/property tests/conformance
# The tests that kill processes again and again, or prove an order; the environment sets how often.
KILL_TESTS := tests/integration/test_kill.py tests/integration/test_server_kill.py tests/integration/log/test_log_api_kill.py \
	tests/integration/log/test_leases.py tests/integration/log/test_redrives.py tests/unit/pipeline/test_lake_kills.py tests/integration/router/test_fifo_proof.py
SPARK_KILL_TESTS := tests/spark/test_sink_kills.py tests/spark/test_archive_kills.py tests/spark/test_route_kills.py
LONG_KILLS := PENSTOCK_KILLS=25 PENSTOCK_SERVER_KILLS=6 PENSTOCK_LOG_KILLS=6 PENSTOCK_LEASE_KILLS=20 PENSTOCK_REDRIVE_KILLS=20 PENSTOCK_LAKE_KILLS=200 PENSTOCK_SPARK_KILLS=10 PENSTOCK_ROUTE_KILLS=20 \
	PENSTOCK_FIFO_GROUPS=60 PENSTOCK_FIFO_MESSAGES=20
TYPED := src tests $(patsubst %/,%,$(sort $(dir $(wildcard benchmarks/*.py examples/*.py scripts/*.py))))

# A test run starts hundreds of Python processes. Without bytecode files, each of them would compile all of Penstock again.
unexport PYTHONDONTWRITEBYTECODE

SERVER_STAMP := $(VENV)/.server-installed
TEST_STAMP := $(VENV)/.test-installed
BENCH_STAMP := $(VENV)/.bench-installed
DOCS_STAMP := $(VENV)/.docs-installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-test demo proof lint format test-fast test test-long test-newest test-noisy test-pythons cluster-test torture cover bench bench-compare screenshots docs build lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(SERVER_STAMP) ## install the server and the router into .venv
	@echo "penstock: .venv is ready; start the server with $(VENV)/bin/penstock serve"

setup-test: $(TEST_STAMP) ## install what the tests need beyond that: test tools, Spark, servers, a browser

$(SERVER_STAMP): pyproject.toml requirements.lock scripts/setup scripts/installing.sh
	@sh scripts/setup $(VENV) server
	@touch $@

$(TEST_STAMP): $(SERVER_STAMP) scripts/setup-java scripts/setup-servers scripts/setup-node tests/node/package-lock.json
	@sh scripts/setup $(VENV) test
	@touch $@

$(BENCH_STAMP): $(SERVER_STAMP) scripts/setup-java scripts/setup-servers
	@sh scripts/setup $(VENV) bench
	@touch $@

$(DOCS_STAMP): $(SERVER_STAMP)
	@sh scripts/setup $(VENV) docs
	@touch $@

demo: $(SERVER_STAMP) ## see a shop on Penstock, live: a kill -9, a failing mail, webhooks, browsers, Spark (ARGS=--help)
	@PYTHONPATH=$(CURDIR)/examples $(PYTHON_BIN) -m demo --install-spark "sh scripts/setup $(VENV) spark" $(ARGS)

proof: $(TEST_STAMP) ## check 61 claims about every part, with real clients and kill -9 (4 minutes)
	@PYTHONPATH=$(CURDIR)/examples $(PYTHON_BIN) -m proof $(ARGS)

lint: $(TEST_STAMP) ## check rules, formatting, imports, layout, words and types
	$(PYTHON_BIN) -m ruff check .
	$(PYTHON_BIN) -m ruff format --check .
	$(PYTHON_BIN) scripts/check_layout.py
	$(PYTHON_BIN) scripts/check_words.py
	$(PYTHON_BIN) -m mypy $(TYPED)

format: $(TEST_STAMP) ## format the code, and fix what ruff can fix
	$(PYTHON_BIN) -m ruff check --fix-only .
	$(PYTHON_BIN) -m ruff format .

test-fast: $(TEST_STAMP) ## run the fast ring, without servers: unit, property, conformance in memory
	$(PYTEST) $(PARALLEL) -m "not long and not server" $(FAST_FOLDERS) $(ARGS)

# Spark gives a Python worker ten seconds to start, so its tests run after the others.
test: $(TEST_STAMP) ## run what a change must pass (ARGS="-k word" selects tests)
	$(PYTEST) $(PARALLEL) -m "not long and not spark and not alone" $(ARGS) || $(NOTHING_SELECTED)
	$(PYTEST) -m "not long and (spark or alone)" $(ARGS) || $(NOTHING_SELECTED)

test-long: $(TEST_STAMP) ## run everything else, more examples and more kills, then `make test` with the newest versions
	HYPOTHESIS_PROFILE=ci $(PYTEST) $(PARALLEL) tests/property $(ARGS) || $(NOTHING_SELECTED)
	$(PYTEST) $(PARALLEL) -m "long and not spark and not alone" $(KILL_TESTS:%=--ignore=%) $(ARGS) || $(NOTHING_SELECTED)
	$(PYTEST) -m "long and (spark or alone)" $(ARGS) || $(NOTHING_SELECTED)
	$(LONG_KILLS) $(PYTEST) --timeout=3600 $(KILL_TESTS) $(SPARK_KILL_TESTS) $(ARGS) || $(NOTHING_SELECTED)
	$(MAKE) test-newest

test-newest: ## run `make test` with the newest versions that pyproject.toml allows, in .venv-newest
	PENSTOCK_UNLOCKED=1 $(MAKE) test VENV=.venv-newest ARGS="$(ARGS)"

test-noisy: $(TEST_STAMP) ## run `make test` twice beside two busy loops
	@sh scripts/test-noisy $(MAKE)

test-pythons: ## run the fast ring and a server round trip on every Python from 3.11 to 3.14 that is installed
	@sh scripts/test-pythons

cluster-test: $(TEST_STAMP) ## run source, sink and jobs on a Spark cluster on this machine: a master and two workers
	$(PYTEST) tests/cluster $(ARGS)

torture: $(TEST_STAMP) ## kill a broker 1,000 times, Spark's driver 200 times, routers under load (hours)
	PENSTOCK_KILLS=1000 $(PYTEST) --timeout=14400 tests/integration/test_kill.py $(ARGS)
	PENSTOCK_REDRIVE_KILLS=200 $(PYTEST) --timeout=14400 tests/integration/log/test_redrives.py $(ARGS)
	PENSTOCK_FIFO_GROUPS=1000 PENSTOCK_FIFO_MESSAGES=200 $(PYTEST) --timeout=14400 tests/integration/router/test_fifo_proof.py $(ARGS)
	PENSTOCK_RETURNERS=2000 $(PYTEST) --timeout=14400 tests/integration/hub/test_returning.py $(ARGS)
	PENSTOCK_NODE_KILLS=100 $(PYTEST) --timeout=14400 tests/integration/nodes/test_failover.py -k killed $(ARGS)
	PENSTOCK_SPARK_KILLS=100 PENSTOCK_ROUTE_KILLS=200 $(PYTEST) --timeout=14400 $(SPARK_KILL_TESTS) $(ARGS)

cover: $(TEST_STAMP) ## run `make test` without Spark, with branch coverage; the report is in htmlcov/
	$(PYTEST) $(PARALLEL) -m "not long and not spark and not alone" --cov --cov-report= $(ARGS) || $(NOTHING_SELECTED)
	$(PYTEST) -m "not long and alone" --cov --cov-append --cov-report=term-missing:skip-covered --cov-report=html $(ARGS) || $(NOTHING_SELECTED)

bench: $(BENCH_STAMP) ## measure, and print a table and JSON (ARGS are passed on)
	@$(PYTHON_BIN) -m benchmarks $(ARGS)

bench-compare: $(BENCH_STAMP) ## compare the speed of this tree with BASE=<commit>, in turns (ARGS=--quick: 3 minutes; ARGS=--help)
	@$(PYTHON_BIN) -m benchmarks.compare "$(BASE)" $(ARGS)

screenshots: $(TEST_STAMP) ## take the pictures of the console for README and docs (2 minutes)
	$(PYTHON_BIN) -m tests.integration.console.screenshots docs/images

docs: $(DOCS_STAMP) ## build the documentation into site/, with a reference made from the code; no other machine is asked
	NO_MKDOCS_2_WARNING=1 $(PYTHON_BIN) -m mkdocs build --quiet
	@echo "penstock: open site/index.html"

build: $(TEST_STAMP) ## build the wheel into dist/
	$(PYTHON_BIN) -m build --wheel --outdir dist

lock: $(SERVER_STAMP) ## renew requirements.lock, the exact versions that tests and CI install
	@sh scripts/lock $(VENV)

clean: ## remove what the other targets made, except .venv
	rm -rf dist build htmlcov site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
