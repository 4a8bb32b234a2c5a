# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV ?= .cache/venv
PYTHON := $(VENV)/bin/python
# Ordinary users' PATH leaves out where Debian keeps sgdisk, mke2fs, mkfs.vfat and ip.
export PATH := $(abspath $(VENV))/bin:$(PATH):/usr/local/sbin:/usr/sbin:/sbin
export VENV
# Texts of tools look the same whatever the caller's terminal and language.
export LC_ALL := C.UTF-8
export TERM ?= dumb

PYTEST := $(PYTHON) -m pytest
ARGS ?=

.PHONY: help
help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

.PHONY: deps
deps: ## Install what is missing: Debian packages (root or sudo), Python packages into .cache/venv
	@tools/install.sh

.PHONY: demo
demo: deps ## From bare metal to a running system and back, on two virtual servers
	@$(PYTHON) tools/demo.py $(ARGS)

.PHONY: test
test: ## Everything that a change has to pass, with the seconds of each block
	@tools/blocks.sh install:deps lint sanity units unit integration images machine

.PHONY: test-full
test-full: test ## make test, then units to integration with the oldest and newest ansible-core
	@tools/matrix.sh

LINTERS := arrows ansible changelog format reference ruff shell types yaml

.PHONY: lint
lint: deps ## ruff, mypy, import-linter, yamllint, ansible-lint, shellcheck
	@$(MAKE) --keep-going --jobs=2 --output-sync=target $(LINTERS:%=lint-%)

.PHONY: $(LINTERS:%=lint-%)
lint-ansible:
	ansible-lint --offline -q
lint-arrows:
	PYTHONPATH=.cache/collections:. lint-imports --config pyproject.toml --no-logo
lint-changelog:
	antsibull-changelog lint
lint-format:
	ruff format --check
lint-reference:
	$(PYTHON) tools/reference.py --check
lint-ruff:
	ruff check
lint-shell:
	shellcheck .ci/run $$(git ls-files '*.sh')
lint-types:
	mypy
lint-yaml:
	yamllint --strict .

.PHONY: sanity
sanity: deps ## ansible-test sanity on a copy of the collection
	@tools/ansible_test.sh sanity $(ARGS)

.PHONY: units
units: deps ## ansible-test units on a copy of the collection: tests/unit/plugins
	@tools/ansible_test.sh units $(ARGS)

.PHONY: unit
unit: deps ## Tests of single parts that are no plugins
	@$(PYTEST) tests/unit --ignore tests/unit/plugins -n 2 -q $(ARGS)

.PHONY: integration
integration: deps ## Tests against real services and light machines
	@$(PYTEST) tests/integration -q $(ARGS)

.PHONY: images
images: deps ## Build the ramdisk and the images that the machine tests use
	@ansible-playbook -i localhost, tests/support/build_images.yml $(ARGS)

.PHONY: machine
machine: deps ## Tests with whole virtual machines
	@$(PYTEST) tests/machine -q $(ARGS)

.PHONY: collection
collection: deps ## Build the tarball of the collection into .cache
	@ansible-galaxy collection build --force --output-path .cache .

.PHONY: reference
reference: deps ## Write docs/reference.md from the code
	@$(PYTHON) tools/reference.py

.PHONY: pin
pin: deps ## Write constraints.txt anew with the newest versions that fit together
	@tools/pin.sh

.PHONY: clean
clean: ## Remove everything that was built, downloaded packages too
	rm -rf .cache tests/output .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
