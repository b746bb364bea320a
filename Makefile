# Every target works on a fresh clone: the only prerequisite is a Python >= 3.11 with venv, on x86-64 Linux.
#
#   make demo        stock SGLang beside tokenflow, one burst of readers on an emulated device, in virtual time
#   make check       lint, and the short tests that start no SGLang, for daily work
#   make test        lint, and all tests but the slow ones, on live servers, too: 15 minutes on two cores
#   make test-slow   ten minutes of random attacks, and models and settings that make test leaves out: MINUTES of it, or all with MINUTES=0
#   make upstream    what another release of SGLang changes of what this package holds on to: VERSION=0.5.24, BASE=0.5.22 (docs/porting.md)
#   make prove       every seam, the bodies against each other, tokens against undisturbed runs, attackers; then this SGLang counts as proved
#   make sglang-tests  SGLang's own tests as stock and with the scheduler, of a clone: FOLDER=~/sglang/test, ARGS="--only '*/scheduler/*'"
#   make lint        format, types, import contracts, spelling, Markdown
#   make site        the docs site, into .site/html, for any static host
#   make lock        pin all dependencies anew (requirements/)
#
# SGLANG=0.5.22 runs a target on that release of SGLang, in an environment of its own: make test SGLANG=0.5.22

UV_VERSION := 0.13.9
SGLANG :=
OLDER := $(wildcard requirements/sglang-*.in)
LOCK := requirements/$(if $(SGLANG),sglang-$(SGLANG),dev).txt
$(if $(wildcard $(LOCK)),,$(error There is no $(LOCK). Without SGLANG it is the newest release; others: $(OLDER:requirements/sglang-%.in=%)))
VENV := .venv$(if $(SGLANG),-$(SGLANG))
BIN := $(VENV)/bin
UV := $(BIN)/uv
STAMP := $(VENV)/installed
PROJECTS := pyproject.toml emulator/pyproject.toml
SOURCES := tokenflow_sgl emulator tests benchmarks examples porting website
DOCS := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs emulator/README.md benchmarks examples traces/README.md
# Two files of tests at a time, in the order of tests/conftest.py: most of those with a server wait for it half of the time.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# The first interpreter that is new enough and can make a virtual environment. 3.11 comes first: the lock is made for it.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v $$p; break; }; done)

# Other environments that happen to be active are none of our business. Without bytecode each process compiles us anew.
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-slow upstream prove sglang-tests lint site format install lock clean
.DEFAULT_GOAL := test

demo: $(STAMP)
	$(BIN)/tokenflow demo $(ARGS)

check: lint
	$(PYTEST) -m "not engine and not slow and not long" $(ARGS)

# pyproject.toml leaves out what is marked slow.
test: lint
	$(PYTEST) $(ARGS)

# What is left when the time is up is skipped as "NOT RUN". TURN=n takes only the part that landing n has, as CI does with .ci/turn
# (tests/helpers/rotation.py); without it files come in another order each time.
MINUTES := 20
ONE_SLOW_TEST := 240
TURN :=
test-slow: $(STAMP)
	$(PYTEST) -m slow $(if $(TURN),--turn $(TURN)) $(if $(filter-out 0,$(MINUTES)),--start-none-after $$(($$(date +%s) + 60 * $(MINUTES) - $(ONE_SLOW_TEST)))) $(ARGS)

# Ends with 1 if there is something to look at, which make tells as an error.
upstream: $(STAMP)
	@test -n "$(VERSION)" || { echo "Name a release of SGLang: make upstream VERSION=0.5.24"; exit 2; }
	$(BIN)/python -m porting.upstream $(VERSION) $(if $(BASE),--base $(BASE)) $(ARGS)

prove: $(STAMP)
	$(BIN)/python -m porting.prove $(ARGS)

# Ends with 1 if a case fails with ours only, with 2 if none passes as stock.
sglang-tests: $(STAMP)
	@test -n "$(FOLDER)" || { echo "Name the tests of a clone of SGLang: make sglang-tests FOLDER=~/sglang/test"; exit 2; }
	$(BIN)/python -m porting.sglang_tests $(FOLDER) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache  # its cache once hid a broken contract
	$(BIN)/codespell $(SOURCES) $(DOCS)
	$(BIN)/rumdl check --quiet $(DOCS)

# A page that is in no menu and a link or an anchor that leads nowhere end it.
site: $(STAMP)
	$(BIN)/python website/stage.py .site/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

install: $(STAMP)

# Bytecode first: SGLang imports in half the time, and every test server imports it. uv shares its cache between environments by hard links, so only the first install on a machine downloads.
$(STAMP): $(LOCK) $(PROJECTS) | $(UV)
	$(UV) pip sync --compile-bytecode --python $(BIN)/python --require-hashes $(LOCK)
	$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --editable . --editable emulator
	@touch $@

$(UV):
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 with venv found; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Older releases get the versions of the newest one, but where they need others.
PIN = $(UV) pip compile --quiet --generate-hashes --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_34 \
	--custom-compile-command "make lock"
COMPILE = $(PIN) $(PROJECTS) --all-extras --no-emit-package tokenflow-sgl --override requirements/left-out.in
lock: | $(UV)
	$(PIN) --upgrade requirements/gateways.in --output-file requirements/gateways.txt
	$(PIN) --upgrade requirements/router.in --output-file requirements/router.txt
	$(PIN) --upgrade --no-deps requirements/dynamo.in --output-file requirements/dynamo.txt
	$(COMPILE) --upgrade --output-file requirements/dev.txt
	for older in $(OLDER:.in=); do \
		cp requirements/dev.txt $$older.txt && $(COMPILE) --override $$older.in --output-file $$older.txt || exit; \
	done

clean:
	rm -rf .site .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-results
