# Each target sets its own environment up: on a fresh machine `make demo` or `make test` is all there is to type.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all browser lint bench clean

help:
	@echo "make demo    GPT-2 over a budget in plain PyTorch and inside it under Neaptide, reading and training: predicted, measured, drawn"
	@echo "make test    run the tests"
	@echo "make test-all run those too that take longer and show the same on more models"
	@echo "make browser install Chromium (Debian's), so that make test looks at the pages in it"
	@echo "make lint    check style and types"
	@echo "make bench   run every benchmark"

setup: $(STAMP)

# Keyed on what is installed, so that it is done once and again when that changes.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) with $$($(PYTHON) --version); the first time this takes a few minutes."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Neaptide needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt -e '.[dev,html,exact]'
	@touch $(STAMP)

demo: $(STAMP)
	MALLOC_MMAP_THRESHOLD_=65536 $(BIN)/python examples/demo.py

# Peaks are measured in some tests: freed tensors must go back to the kernel. Two processes share the machine: threads that wait
# must not spin, and the one that is done first takes over from the other.
test: $(STAMP)
	MALLOC_MMAP_THRESHOLD_=65536 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

test-all: $(STAMP)
	$(MAKE) test ARGS="-m 'slow or not slow' $(ARGS)"

browser: $(STAMP)
	apt-get install --yes --no-install-recommends chromium chromium-driver
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[browser]'

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)
	@for file in benchmarks/*.py; do [ -e "$$file" ] || continue; echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean:
	rm -rf $(VENV) demo.html advice.html
