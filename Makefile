# `make run` and `make test` are for users; everything else is for people who change forewarn.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
RUN     = $(VENV)/.installed-run
REAL    = .venv-real
AZURE   = .venv-azure
AZ      = .venv-az
PARTS   = .venv-parts
PORTAL  = .venv-portal
HANDLERS = .venv-handlers
IMAGES  = .venv-images
DIST    = .venv-dist
VMS     = .venv-vms
CLUSTER = .venv-cluster
CONTAINER ?= podman
SITE    = .venv-site
FLAGS   = -m pytest -q $(PYTEST_FLAGS)
PYTEST  = $(BIN)/python $(FLAGS)
PYTHONS ?= python3.11 python3.12 python3.13
SCHEDULES ?= 10000

.PHONY: run cluster test test-versions simulate test-namespaces test-real test-vms test-vms-long test-cluster test-cluster-long test-crash test-crash-long test-azure test-az test-portal test-portal-long bench lint docs site screenshots clean help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing forewarn and what it needs into $(VENV) (once; about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server,agent,dev]'
	@touch $@ $(RUN)

$(RUN): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing forewarn into $(VENV) (once; about half a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server,agent]'
	@touch $@

run: $(RUN) ## start the service with a sample fleet
	@exec $(BIN)/forewarn up

test: $(STAMP) lint ## lint, then run every test that needs only pip's packages
	$(PYTEST) -n 4 --dist worksteal -m 'not namespaces and not real and not azure and not az and not portal and not portal_long and not crash and not crash_long and not vms and not vms_long and not cluster and not cluster_long'
	$(BIN)/python -m pytest -q examples/queue-worker

test-versions: ## run the tests with every version of Python in PYTHONS, each in a .venv of its own
	@for python in $(PYTHONS); do $(MAKE) test PYTHON=$$python VENV=.venv-$$(basename $$python) || exit 1; done

simulate: $(STAMP) ## run SCHEDULES=n random schedules with crashes in virtual time, from seed FIRST=n on; SEED=n or SCHEDULE=file replays one; OF=clusters for clusters
	@$(BIN)/python -m tests.simulation --schedules $(SCHEDULES) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(if $(SCHEDULE),--schedule $(SCHEDULE)) $(if $(OF),--cluster)

test-namespaces: $(STAMP) ## run the tests of networks and VMs made of namespaces (as root; installs what they need)
	@tests/namespace_vm/install_programs.sh $(REAL) $(PYTHON)
	@tests/deploy/install_builder.sh $(IMAGES)
	$(PYTEST) -m 'namespaces and not az and not crash and not crash_long'

test-real: $(STAMP) ## run reactions and alerts on real servers (as root; unpacks what they need, installs nothing)
	@tests/agent/install_servers.sh $(PARTS) $(PYTHON)
	PATH="$(CURDIR)/$(PARTS)/debian/usr/bin:$$PATH" $(PYTEST) -n 2 --dist loadfile -m real tests/agent tests/metrics

test-vms: $(STAMP) ## run tests on real VMs of QEMU and libvirt (as root; installs both)
	@tests/vms/install_vms.sh $(VMS)
	@tests/vms/install_libvirt.sh $(VENV)
	@tests/cluster/install_servers.sh $(CLUSTER) $(VENV)
	$(PYTEST) -m vms tests/vms

test-vms-long: $(STAMP) ## kill the service at every step of acts on real VMs, too (as root; installs QEMU and libvirt)
	@tests/vms/install_vms.sh $(VMS)
	@tests/vms/install_libvirt.sh $(VENV)
	$(PYTEST) -m vms_long tests/vms

test-cluster: $(STAMP) ## run tests with real servers of PostgreSQL and NATS, in partitioned networks too (as root; installs them)
	@tests/cluster/install_servers.sh $(CLUSTER) $(VENV)
	PATH="$(CURDIR)/$(CLUSTER)/debian/usr/sbin:$$PATH" $(PYTEST) -n 2 --dist loadfile -m cluster tests

test-cluster-long: $(STAMP) ## break parts of a cluster at random for MINUTES=n, from SEED=n on, one or two at a time (as root; installs the servers)
	@tests/cluster/install_servers.sh $(CLUSTER) $(VENV)
	FOREWARN_TEST_MINUTES=$(or $(MINUTES),60) FOREWARN_TEST_SEED=$(or $(SEED),1) $(PYTEST) -s -m cluster_long tests/cluster

cluster: $(STAMP) ## run PostgreSQL, NATS, two control nodes and two host nodes on this machine, to kill parts of them (as root; installs the servers)
	@tests/cluster/install_servers.sh $(CLUSTER) $(VENV)
	@exec $(BIN)/python -m tools.cluster_demo

test-crash: $(STAMP) ## run handlers of our own through the crash test (in namespaces where the machine allows them)
	@tests/crash_test/install_toolchains.sh
	$(PYTEST) -n 6 --dist worksteal -m crash tests/crash_test

test-crash-long: $(STAMP) ## run every case with good and defective handlers, and whole profiles again and again (hours)
	@tests/crash_test/install_toolchains.sh
	@tests/crash_test/foreign/install_handlers.sh $(HANDLERS) $(PYTHON)
	$(PYTEST) -n 6 --dist worksteal -m crash_long tests/crash_test/test_planted_handlers.py
	$(PYTEST) -m crash_long tests/crash_test --ignore tests/crash_test/test_planted_handlers.py

test-azure: ## run the tests with Azure's own libraries for Python and JavaScript
	@tests/azure/install_clients.sh sdk $(AZURE) $(PYTHON)
	$(AZURE)/bin/python $(FLAGS) -n 2 --dist worksteal -m azure tests/azure

test-az: $(STAMP) ## run the tests with the az command line (fetches 730 MB)
	@tests/azure/install_clients.sh az $(AZ) $(PYTHON)
	$(PYTEST) -n 2 --dist worksteal -m az tests/azure

test-portal: site ## run the tests of the portal and of the site in a real browser (as root; installs Chromium)
	@tests/browser/install_browser.sh $(PORTAL) $(PYTHON)
	$(PORTAL)/bin/python $(FLAGS) -n 2 --dist worksteal -m portal tests/browser

test-portal-long: ## take screenshots of every page of the portal with 3,000 VMs, too (as root; installs Chromium)
	@tests/browser/install_browser.sh $(PORTAL) $(PYTHON)
	$(PORTAL)/bin/python $(FLAGS) -m portal_long tests/browser

bench: $(STAMP) ## measure the service beside nginx and the portal in a browser, and compare with the targets (15 minutes)
	@bench/programs.sh
	@tests/browser/install_browser.sh $(PORTAL) $(PYTHON)
	@$(BIN)/python -m bench $(BENCH_FLAGS)

.PHONY: dist images image-builder
dist: $(STAMP) ## build the wheel and the sdist into dist/, check their metadata, and run a lab from the wheel
	@test -x $(DIST)/bin/twine || { $(PYTHON) -m venv $(DIST) && $(DIST)/bin/python -m pip install --quiet --disable-pip-version-check twine; }
	rm -rf dist
	$(BIN)/python -m build
	$(DIST)/bin/twine check --strict dist/*
	FOREWARN_DIST=$(CURDIR)/dist $(PYTEST) tests/e2e/test_wheel.py

images: image-builder $(if $(wildcard dist/forewarn-*.whl),,dist) ## build the images forewarn-server and forewarn-agent from the wheel in dist/; CONTAINER=docker uses docker, IMAGE_FLAGS="…" adds options of `build`
	@for image in server agent; do \
	  BUILDAH_FORMAT=docker $(CONTAINER) build -f deploy/$$image.Containerfile -t forewarn-$$image \
	    --build-arg VERSION=$$(ls dist/forewarn-*.whl | cut -d- -f2) $(IMAGE_FLAGS) . || exit 1; \
	done

image-builder:
	@command -v $(CONTAINER) >/dev/null || { echo "$(CONTAINER) is not installed: install it, or name another program that builds images, such as CONTAINER=docker" >&2; exit 1; }

lint: $(STAMP) ## run ruff, mypy --strict and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## write the generated pages and the tour of docs/ again (starts a lab for the tour)
	$(BIN)/python -m tools.docs
	$(BIN)/python -m bench.scale

screenshots: ## take the pictures of the portal and of a report in docs/ again (as root; installs Chromium)
	@tests/browser/install_browser.sh $(PORTAL) $(PYTHON)
	$(PORTAL)/bin/python -m tools.docs.screenshot

site: ## build the documentation site in site/, to be opened from there or served by any web server
	@tools/site/install.sh $(SITE) $(PYTHON)
	@$(SITE)/bin/python -m tools.site.staging $(SITE)/scripts
	@$(SITE)/bin/zensical build --clean --strict
	@$(SITE)/bin/python -m tools.site.check site
	@echo "the site is in site/: open site/index.html"

clean: ## remove everything that the other targets created
	rm -rf $(VENV) $(addprefix .venv-,$(notdir $(PYTHONS))) $(REAL) $(AZURE) $(AZ) $(PARTS) $(PORTAL) $(HANDLERS) $(IMAGES) $(DIST) $(VMS) $(CLUSTER) $(SITE) site .cache tests/browser/artefacts build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .simulation bench/results/2*
