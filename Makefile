# `make run` and `make test` are for users; everything else is for people who change forewarn.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
REAL    = .venv-real
AZURE   = .venv-azure
AZ      = .venv-az
PARTS   = .venv-parts
PORTAL  = .venv-portal
FLAGS   = -m pytest -q $(PYTEST_FLAGS)
PYTEST  = $(BIN)/python $(FLAGS)
PYTHONS ?= python3.11 python3.12 python3.13
SCHEDULES ?= 10000

.PHONY: run test test-versions simulate test-namespaces test-real test-azure test-az test-portal bench lint docs clean help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing forewarn and what it needs into $(VENV) (once; about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server,agent,dev]'
	@touch $@

run: $(STAMP) ## start the service with a sample fleet
	@exec $(BIN)/forewarn up

test: $(STAMP) lint ## lint, then run every test that needs only pip's packages
	$(PYTEST) -n 2 --dist worksteal -m 'not namespaces and not real and not azure and not az and not portal'
	$(BIN)/python -m pytest -q examples/queue-worker

test-versions: ## run the tests with every version of Python in PYTHONS, each in a .venv of its own
	@for python in $(PYTHONS); do $(MAKE) test PYTHON=$$python VENV=.venv-$$(basename $$python) || exit 1; done

simulate: $(STAMP) ## run SCHEDULES=n random schedules with crashes in virtual time, from seed FIRST=n on; SEED=n or SCHEDULE=file replays one
	@$(BIN)/python -m tests.simulation --schedules $(SCHEDULES) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(if $(SCHEDULE),--schedule $(SCHEDULE))

test-namespaces: $(STAMP) ## run the tests of networks and VMs made of namespaces (as root; installs what they need)
	@tests/namespace_vm/install_programs.sh $(REAL) $(PYTHON)
	$(PYTEST) -m 'namespaces and not az'

test-real: $(STAMP) ## run reactions and alerts on real servers (as root; unpacks what they need, installs nothing)
	@tests/agent/install_servers.sh $(PARTS) $(PYTHON)
	PATH="$(CURDIR)/$(PARTS)/debian/usr/bin:$$PATH" $(PYTEST) -n 2 --dist loadfile -m real tests/agent tests/metrics

test-azure: ## run the tests with Azure's own libraries for Python and JavaScript
	@tests/azure/install_clients.sh sdk $(AZURE) $(PYTHON)
	$(AZURE)/bin/python $(FLAGS) -n 2 --dist worksteal -m azure tests/azure

test-az: $(STAMP) ## run the tests with the az command line (fetches 730 MB)
	@tests/azure/install_clients.sh az $(AZ) $(PYTHON)
	$(PYTEST) -n 2 --dist worksteal -m az tests/azure

test-portal: ## run the tests of the portal in a real browser (as root; installs Chromium)
	@tests/browser/install_browser.sh $(PORTAL) $(PYTHON)
	$(PORTAL)/bin/python $(FLAGS) -n 2 --dist worksteal -m portal tests/browser

bench: $(STAMP) ## measure the service beside nginx and the portal in a browser, and compare with the targets (15 minutes)
	@bench/programs.sh
	@tests/browser/install_browser.sh $(PORTAL) $(PYTHON)
	@$(BIN)/python -m bench $(BENCH_FLAGS)

lint: $(STAMP) ## run ruff, mypy --strict and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## write the generated pages of docs/ again
	$(BIN)/python -m tools.docs
	$(BIN)/python -m bench.scale > docs/scale.md

clean: ## remove everything that the other targets created
	rm -rf $(VENV) $(addprefix .venv-,$(notdir $(PYTHONS))) $(REAL) $(AZURE) $(AZ) $(PARTS) $(PORTAL) tests/browser/artefacts build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .simulation bench/results/2*
