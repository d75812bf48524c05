# Everything runs in .venv, which the first command creates. It needs Python >= 3.11 and make.
# `demo` and `studio` install what captions, answers and translations need; the rest adds PyTorch.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints-hashed.txt

# uv does not read pip's settings; this lets it find the local wheels that pip is configured with.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)

# Tests start hundreds of processes; without cached bytecode each would compile PyTorch's modules.
test test-all test-hostile: export PYTHONDONTWRITEBYTECODE =

.PHONY: help studio demo demo-scenes test test-all test-hostile chromium lint format lock clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

studio: $(VENV)/.installed ## Serve the studio: a page that shows what the models see
	$(BIN)/ngsan serve

demo: $(VENV)/.installed ## Caption the example photographs and show where the model looked
	$(BIN)/ngsan demo

demo-scenes: $(VENV)/.installed-train ## Train SAN and NG-SAN on built-in scenes and compare their captions
	$(BIN)/ngsan demo scenes

test: $(VENV)/.installed-test ## Run the fast tests: all that is needed to trust a change
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not browser"

test-all: $(VENV)/.installed-test $(VENV)/.installed-browser chromium ## Run every test: also the slow tier and the pages in Chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-hostile: $(VENV)/.installed-test $(VENV)/.installed-hostile ## Try ten thousand hostile inputs, and a server under attack (half an hour)
	NGSAN_HOSTILE=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/hostile
	$(BIN)/python -m tests.hostile.soak 600

# From the system: a browser needs libraries that no Python package installs.
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		if command -v $$name > /dev/null; then exit 0; fi; \
	done; \
	if ! command -v apt-get > /dev/null; then \
		echo "Chromium is missing and apt-get is not available: install Chromium by hand" >&2; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then as=; \
	elif command -v sudo > /dev/null; then as=sudo; \
	else \
		echo "Chromium is missing and needs root to install: apt-get install chromium" >&2; exit 1; \
	fi; \
	echo "installing Chromium" && $$as apt-get update -qq \
		&& $$as env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium fonts-dejavu-core

lint: $(VENV)/.installed-test $(VENV)/.installed-lint ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-lint ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/.uv ## Write constraints-hashed.txt: the pinned versions with the hashes of their files
	{ echo "# From constraints.txt by 'make lock'. PyTorch has no hash: its builds of one version differ by index."; \
		grep '^torch==' constraints.txt; \
		grep -v '^torch==' constraints.txt | $(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-header \
			--no-annotate -; } > $(VENV)/hashed.txt
	mv $(VENV)/hashed.txt constraints-hashed.txt

clean: ## Remove the environment and all caches
	rm -rf $(VENV) demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.uv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ngsan needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/[^\\]$$/p' constraints-hashed.txt > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r $(VENV)/uv.txt
	touch $@

$(VENV)/.installed: $(VENV)/.uv pyproject.toml constraints-hashed.txt
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-train: $(VENV)/.installed
	$(INSTALL) -e '.[train]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(INSTALL) -e '.[all]' --group test
	touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(INSTALL) --group $*
	touch $@
