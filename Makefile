# Every target creates .venv and installs the package if needed. PYTHON is the interpreter that creates it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CHECKS := check-format check-lint check-types check-layers check-repetition

# Compiled modules are kept even where the environment says not to: else every process that a test starts compiles them.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-slow check $(CHECKS) docs format hooks benchmark verify wheel clean

# The constraints pin the tested versions; without them pip would fetch a CUDA build of torch. Modules are compiled when
# they are first imported: most of those that are installed never are.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/candapt demo --out demo

# One process per core, each with one thread: results are compared bit by bit.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -q -n auto --dist worksteal

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow -q

# Two at a time: mypy and pylint take one core each, and longer than all others. Each also runs on its own.
check: $(READY)
	$(MAKE) --no-print-directory --keep-going --jobs=2 $(CHECKS)

check-types: $(READY)
	$(BIN)/mypy

check-repetition: $(READY)
	$(BIN)/pylint candapt --score n

check-format: $(READY)
	$(BIN)/ruff format --check .

check-lint: $(READY)
	$(BIN)/ruff check .

check-layers: $(READY)
	$(BIN)/lint-imports --no-logo

# The documentation site, in site/. Warnings are errors. The variable silences a notice on the theme's future, which is
# no warning about the site.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Run `make check` before every commit.
hooks: $(READY)
	$(BIN)/pre-commit install

# Measures again what takes minutes: the loss, start-up, the demonstration, serving and, with the data sets, features, embed,
# report and export. Then writes all tables. The suites take hours: `python -m benchmarks.suites`.
benchmark: $(READY)
	$(BIN)/python -m benchmarks.losses
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.demo
	if test -d "$${CANDAPT_SHARED:-../shared}"; then $(BIN)/python -m benchmarks.features; fi
	if test -d "$${CANDAPT_SHARED:-../shared}"; then $(BIN)/python -m benchmarks.embed; fi
	if test -d "$${CANDAPT_SHARED:-../shared}"; then $(BIN)/python -m benchmarks.report; fi
	if test -d "$${CANDAPT_SHARED:-../shared}"; then $(BIN)/python -m benchmarks.export; fi
	$(BIN)/python -m benchmarks.serve
	$(BIN)/python -m benchmarks.tables

# Trains one random cell of every recorded table again and compares.
verify: $(READY)
	$(BIN)/python -m benchmarks.verify

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf .venv build dist demo site .mypy_cache .pytest_cache .ruff_cache .hypothesis
