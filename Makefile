# Everything runs in .venv, which the first command makes. Python >= 3.11 and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# uv does not read pip's settings; without this it would not see local wheels that pip is told of.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

.PHONY: help studio demo demo-scenes test test-browser chromium lint format clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

studio: $(VENV)/.installed-extra-serve ## Serve the page on which one sees what the models see
	$(BIN)/ngsan serve

demo: $(VENV)/.installed ## Caption the example photographs and show where the model looked
	$(BIN)/ngsan demo

demo-scenes: $(VENV)/.installed ## Train SAN and NG-SAN on built-in scenes and compare their captions
	$(BIN)/ngsan demo scenes

test: $(VENV)/.installed-test ## Run the tests
	$(BIN)/python -m pytest

test-browser: $(VENV)/.installed-test $(VENV)/.installed-browser chromium ## Try the studio's page in Chromium
	$(BIN)/python -m pytest -m browser tests/browser

# Of the system, as a browser needs libraries that no Python package brings along.
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		if command -v $$name > /dev/null; then exit 0; fi; \
	done; \
	if ! command -v apt-get > /dev/null; then \
		echo "Chromium is missing, and there is no apt-get to install it with: install it by hand" >&2; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then as=; \
	elif command -v sudo > /dev/null; then as=sudo; \
	else \
		echo "Chromium is missing, and only root may install it: apt-get install chromium" >&2; exit 1; \
	fi; \
	echo "installing Chromium" && $$as apt-get update -qq \
		&& $$as env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium fonts-dejavu-core

lint: $(VENV)/.installed-test $(VENV)/.installed-lint ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-lint ## Put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and all caches
	rm -rf $(VENV) demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.uv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ngsan needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt uv
	touch $@

$(VENV)/.installed: $(VENV)/.uv pyproject.toml constraints.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e .
	touch $@

# Before the groups, as the first rule that fits is taken.
$(VENV)/.installed-extra-%: $(VENV)/.installed
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[$*]'
	touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --group $*
	touch $@
