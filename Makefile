# make run    installs into .venv; then SAP, Lottery Ticket and One Shot prune a network, in about a minute
# make test   installs into .venv, lints, type-checks and tests
# make docs   installs into .venv, makes the documentation in build/site
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
RUNS := .venv/.runs

.PHONY: run setup test lint trust campaign bench docs pages clean

run: $(RUNS)
	$(BIN)/palmette run

setup: $(READY)

# To run takes far less than to test. uv where it is at hand, pip where it is not; the same pins either way.
$(RUNS): EXTRA := report
$(READY): EXTRA := dev
$(RUNS) $(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	if command -v uv >/dev/null 2>&1 && UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" \
	    uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[$(EXTRA)]'; then :; else \
	    $(BIN)/python -m pip install -q -c constraints.txt -e '.[$(EXTRA)]'; fi
	touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow"

trust: $(READY)
	$(BIN)/python -m pytest -q

# Hours; interrupt it at any time, the same command resumes.
campaign: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/python -m sphinx -aEW --keep-going -q -c docs . build/site
	@echo build/site/index.html

pages: $(READY)
	$(BIN)/python docs/make.py
	$(BIN)/python -m results.make

clean:
	rm -rf build .venv .pytest_cache .mypy_cache .ruff_cache
