# Two commands do all the set-up themselves: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
WHEEL_VENV := .venv-wheel
BIN := $(VENV)/bin
JOBS ?= 2
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo test test-wheel lint types bench docs clean crash

help:
	@echo 'make demo    a fine-tuning job waits, is preempted and goes on, for real (under 3 minutes after set-up)'
	@echo 'make test    the whole test suite'
	@echo 'make lint    ruff and the import contracts;  make types   mypy --strict on an installed copy'
	@echo 'make bench   the budgets, as figures and ratios against references of the same run'
	@echo 'make crash   SIGKILL at every system call of ticks, commands and supervisors; the list of points'
	@echo 'make docs    the generated pages of docs/'

# One environment for demo, tests and development. Editable, so that a change counts at once.
setup: $(VENV)/.ready
$(VENV)/.ready: pyproject.toml constraints-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints-dev.txt -e '.[train,dev]'
	touch $@

demo: setup
	$(BIN)/python docs/demo.py

test: setup
	$(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

# The tests on what a user installs: an editable install hides sub-packages and data files that are not listed.
# The second environment holds the wheel alone and borrows everything else from the first one.
$(WHEEL_VENV)/.ready: setup FORCE
	rm -rf build dist $(WHEEL_VENV)
	$(BIN)/python -m pip wheel --quiet --no-deps -w dist .
	rm -rf build
	$(PYTHON) -m venv $(WHEEL_VENV) --without-pip
	$(BIN)/python -m pip --python $(WHEEL_VENV)/bin/python install --quiet --no-deps dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(WHEEL_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth
	touch $@
FORCE:

test-wheel: $(WHEEL_VENV)/.ready
	$(WHEEL_VENV)/bin/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd / && $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml

types: $(WHEEL_VENV)/.ready
	cd $(WHEEL_VENV) && ../$(BIN)/mypy --python-executable bin/python --config-file ../pyproject.toml -p gpuspool

bench: setup
	$(BIN)/python benchmarks/run.py

# SIGKILL before every system call of every scenario; prints the points covered and points a minute.
crash: setup
	$(BIN)/python tests/crash/run.py

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) $(WHEEL_VENV) build dist *.egg-info
