# make demo   trains a small language model on 4 processes, kills it, brings it back on 2 and then on 3, and shows that
#             every batch and the loss curve are as without the interruption; DATA=folder takes your JSONL or Parquet
# make test   lint, types, import contract, tests with coverage, documentation
#
# Both make their own virtual environment and install into it what they need. PYTHON and VENV choose other ones.

PYTHON ?= python3
VENV ?= .venv
DATA ?=

BIN := $(VENV)/bin
PACKAGE := pyproject.toml README.md $(shell find torchzephon -name '*.py')

.PHONY: demo test lint types contract tests docs clean

demo: $(VENV)/installed-for-demo
	$(BIN)/python examples/demo.py --out .demo $(if $(DATA),--data "$(DATA)")

test: lint types contract tests docs

lint: $(VENV)/installed-for-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-for-test
	$(BIN)/mypy

contract: $(VENV)/installed-for-test
	$(BIN)/lint-imports

tests: $(VENV)/installed-for-test
	$(BIN)/python -m pytest --cov --cov-report=term --cov-fail-under=90

docs: $(VENV)/installed-for-test
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) .demo site

# The demo runs on the package as a user installs it, the tests run on the sources. One environment can be either.

$(VENV)/installed-for-demo: $(PACKAGE) | $(BIN)/python
	@echo "Installing into $(VENV), which takes some minutes"
	$(BIN)/pip install --quiet --disable-pip-version-check ".[demo]"
	rm -f $(VENV)/installed-for-test
	touch $@

$(VENV)/installed-for-test: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV), which takes some minutes"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[test,docs,demo]"
	rm -f $(VENV)/installed-for-demo
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
