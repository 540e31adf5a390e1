# A thin door: everything here is one command that can be run by hand (see `make help`).
.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-alone test-jobs test-servers test-fast test-long check bench chaos ui superset superset-check pictures
BIN := .venv/bin
# What Python compiles is kept, also where an image says otherwise: each process would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE
# The configuration of the UI: yours, else the demo's.
CONFIG ?= $(or $(WIREHOUSE_CONFIG),$(firstword $(wildcard wirehouse.toml demo-lake/wirehouse.toml)))

help: ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Virtual environment, Java, Spark's jars (only what is missing)
	@infra/setup.sh

demo: setup ## A tour on real input in a fresh lake
	@$(BIN)/wirehouse demo

bench: setup ## Measure against the floors; writes docs/benchmarks.md
	@$(BIN)/python -m infra.tools.bench.runner

chaos: setup ## Kill and disturb what works, run again, compare every row (hours; CHAOS="--moments 1 --fault disk")
	@$(BIN)/python -m infra.tools.chaos $(CHAOS)

ui: setup ## Dagster's UI with schedules and sensors, on this machine only
	@$(BIN)/wirehouse $(if $(CONFIG),--config $(CONFIG)) ui

superset: setup ## Apache Superset with the dashboards, over `wirehouse sql-server`, on this machine only
	@infra/superset.sh

superset-check: setup ## Import the bundle, and compare what a running Superset shows in Chromium with our own SQL
	@$(BIN)/pytest -m superset
	@WIREHOUSE_CONFIG=$(CONFIG) $(BIN)/python infra/superset/check.py

pictures: setup ## Take the pictures of README and docs/ again, from the demo's lake or CONFIG's
	@WIREHOUSE_CONFIG=$(CONFIG) $(BIN)/python -m infra.tools.pictures

test: setup ## All tests, of long searches the first cases
	@$(MAKE) --no-print-directory -j 2 --output-sync=target test-alone test-servers

# What needs no servers, in the order of what fails first.
test-alone: test-fast
	@$(BIN)/pytest -n auto --dist loadgroup -m "property and not long and not spark and not servers and not superset"
	@$(MAKE) --no-print-directory test-jobs

test-jobs: setup
	@$(BIN)/pytest -n 2 --dist loadfile -m "spark and not servers"

# In one process: all use the servers of `wirehouse infra`. Much of its time is waiting for these.
test-servers: setup
	@$(BIN)/pytest -m servers

test-fast: setup ## The tests without JVM and properties (five minutes on 2 cores)
	@$(BIN)/pytest -n auto -m "not property and not spark and not servers and not superset"

test-long: setup ## The rest of long searches, and properties with other examples each time (before a release)
	@$(BIN)/pytest -n auto --hypothesis-profile=search -m "long or (property and not spark and not servers and not superset)"

docs: setup ## The site of docs/, in site/
	@$(BIN)/zensical build --clean --strict

check: setup ## Lint, strict types, import directions, fresh generated pages, retired words, links of docs/, known weaknesses of what is pinned
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache >/dev/null || { $(BIN)/lint-imports --no-logo --no-cache; exit 1; }
	@$(BIN)/python -m infra.tools.generated_pages --check
	@$(BIN)/python -m infra.tools.words
	@output=$$($(BIN)/zensical build --strict 2>&1) || { echo "$$output"; exit 1; }
	@infra/audit.sh
