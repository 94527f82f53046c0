# Two commands are enough on a fresh machine: `make demo` and `make test`. Both set themselves up.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3.10 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
ENGINE_VERSIONS ?= 0.32.0 0.27.1
# These start processes and watch them: one after the other. All others run side by side.
PROCESS_TESTS := check drill guard plugin probes reap watch
PROCESS_PATHS := $(addprefix tests/,$(PROCESS_TESTS))
SAMPLE := samples/engine-dead-slow-step.log

.PHONY: demo test setup engine lint docs eval sim bench test-fast test-long clean help

help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip 2>/dev/null || true
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

setup: $(VENV)/.done ## install lifesign and its development tools into .venv

demo: $(VENV)/.done ## diagnose a recorded death of a real engine
	@$(BIN)/lifesign diagnose $(SAMPLE) || test $$? -eq 1 # 1: a death was found

engine: $(VENV)/.done ## build the environment with a real vLLM (CPU) that the engine tests use
	for version in $(ENGINE_VERSIONS); do $(BIN)/python tools/engine_env.py build $$version || exit; done

test: $(VENV)/.done lint engine test-fast ## everything: style, types, docs, unit tests, real-engine tests
	# Real engines start 30 processes and time out on a busy machine: what failed gets one more go, and both results are shown.
	$(BIN)/pytest -q -m "engine and not long" || $(BIN)/pytest -q -m "engine and not long" --last-failed

test-fast: $(VENV)/.done ## without real engines
	$(BIN)/pytest -q -n auto -m "not long and not engine" $(addprefix --ignore=,$(PROCESS_PATHS))
	$(BIN)/pytest -q -m "not long and not engine" $(PROCESS_PATHS)

test-long: $(VENV)/.done engine ## the tests that take minutes each
	$(BIN)/pytest -q -m long

lint: $(VENV)/.done ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.done ## regenerate docs/ from the causes
	$(BIN)/python tools/make_docs.py

eval: $(VENV)/.done ## score the diagnosis on the labelled corpora
	$(BIN)/python tools/eval.py $$(dirname $$(find corpus -name labels.jsonl)) --misses

sim: $(VENV)/.done ## failure detectors compared in virtual time
	$(BIN)/lifesign drill sim

bench: $(VENV)/.done ## speed, as ratios against references in the same run
	for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file; done

clean: ## remove what setup made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
