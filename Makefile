# `make` lists the targets. Each of them first creates .venv where it is missing.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-pyproject
NO_INPUT := --no-input --disable-pip-version-check --progress-bar off
PYTEST := $(BIN)/python -m pytest

# A virtual environment of the caller must not leak into ours, nor a search path of the caller.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME
# Nothing here asks; a tool that would ask gets the end of input instead of a terminal.
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-spark test-s3 test-tier-s3 quick fmt lint types layers house bench docs pictures dist fuzz guided-fuzz torture flips mutants interop broker clients watch front-door check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## create .venv with all extras (LOWEST=1: the lowest versions that they allow)

# Again only when pyproject.toml has changed. pip comes first: one that is older than 26 needs four
# times as long for the same answer (docs/decisions/0003-floors-no-ceilings.md).
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or later, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old: tieredstore needs Python 3.11 or later; say make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Setting up $(VENV): one to five minutes, most of it downloads."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(NO_INPUT) --upgrade pip
	$(if $(LOWEST),$(BIN)/python -m pip install --quiet $(NO_INPUT) 'uv>=0.9' && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python --resolution lowest-direct --editable '.[dev]', \
	  $(BIN)/python -m pip install --quiet $(NO_INPUT) --editable '.[dev]')
	@touch $@

demo: $(STAMP)  ## run the main job on the embedded default (PROVIDER=s3: on an S3 server of its own)
	@rm -rf build/demo
	$(BIN)/python examples/demo.py --keep build/demo $(if $(PROVIDER),--provider $(PROVIDER))

# One run: Spark's tests stay together in one worker process while the other does the rest.
test: $(STAMP)  ## run every test, with S3 on a local server and with Spark
	JAVA_HOME="$$($(BIN)/python tests/spark/bring_java.py)" && export JAVA_HOME && \
	  $(PYTEST) -n $(WORKERS) --dist loadgroup $(ARGS)

test-spark: $(STAMP)  ## run all tests with Spark, also on clusters that are killed at random
	JAVA_HOME="$$($(BIN)/python tests/spark/bring_java.py)" && export JAVA_HOME && \
	  $(PYTEST) -n 0 -m 'spark and not torture' $(ARGS)

quick: $(STAMP)  ## run the tests that take no time: no Spark, no S3, nothing slow
	$(PYTEST) -n $(WORKERS) -m 'not (slow or spark or s3 or fuzz or torture or interop or cluster)' $(ARGS)

# LocalStack 4.13.1 in .s3srv, an environment of its own, unless TIEREDSTORE_S3_ENDPOINT names a server.
test-s3: $(STAMP)  ## contracts and proof on a stricter S3 server than moto, which it sets up itself
	$(BIN)/python tests/s3/localstack_server.py $(PYTEST) tests/s3/test_second_server.py tests/s3/test_second_server_tier.py tests/s3/test_object_clients.py $(ARGS)

test-tier-s3: $(STAMP)  ## the tests of the tier again, in buckets of moto's server, with each client
	TIEREDSTORE_TIER_ON="s3fs obstore" $(PYTEST) -n $(WORKERS) tests/flat tests/access tests/index \
	  tests/providers/test_object_crashes.py tests/providers/test_object_writers_remote.py \
	  -k "s3fs or obstore" $(ARGS)

fuzz: $(STAMP)  ## feed 100 000 damaged inputs to each decoder, or COUNT of them
	FUZZ_INPUTS=$(COUNT) $(PYTEST) -n $(WORKERS) -m fuzz $(ARGS)

# atheris comes to .venv here alone: not each Python has a wheel of it. NAME chooses decoders.
guided-fuzz: $(STAMP)  ## the same with COUNT inputs that grow towards code which none has reached
	$(BIN)/python -m pip install --quiet $(NO_INPUT) 'atheris>=2.3'
	$(BIN)/python -m tests.fuzz.guided $(NAME) --count $(or $(COUNT),100000) $(ARGS)

# With SEED or HOURS only the simulation: schedules of a whole tier from that seed on, for so long.
torture: $(STAMP)  ## run long random histories, and die at every request over HTTP
	$(if $(SEED)$(HOURS),$(BIN)/python -m tests.simulation $(or $(SEED),0) $(if $(HOURS),--hours $(HOURS)) $(ARGS),$(PYTEST) -n $(WORKERS) -m torture --hypothesis-profile=torture $(ARGS))

flips: $(STAMP)  ## flip COUNT single bits in files of stores and tiers, and count what finds them
	$(BIN)/python -m tests.bit_flips --seed $(or $(SEED),1) --count $(or $(COUNT),1000) $(ARGS)

# PACKAGE is queues, flat, index or roundlog; ARGS='--only text' runs those whose name contains it.
mutants: $(STAMP)  ## change the code of PACKAGE in COUNT places, and count what the quick tests see
	$(BIN)/python -m tests.mutation $(PACKAGE) --seed $(or $(SEED),1) --count $(or $(COUNT),300) $(ARGS)

interop: $(STAMP)  ## let the Java broker's own classes, of VERSION 5.3.3 or another, open what we write
	TIEREDSTORE_ROCKETMQ=$(VERSION) $(PYTEST) -m interop $(ARGS)

# STORE=folder TIER=posix:folder or s3://bucket/prefix; others in ARGS: docs/broker.md.
broker: $(STAMP)  ## run the example broker, which RocketMQ's clients speak to, on 127.0.0.1:9876
	$(BIN)/python -m examples.broker --store $(or $(STORE),broker-store) $(if $(TIER),--tier $(TIER)) $(ARGS)

# Java 11 and Maven, Node and npm, and PyPI, as far as they are there.
clients: $(STAMP)  ## let clients of RocketMQ for Java, Node and Python speak to the example broker
	$(BIN)/python -m tests.examples.clients.real_clients
	PYTHONPATH=.clients/stubs $(PYTEST) -n 0 tests/examples/broker/test_grpc.py $(ARGS)

# Options in ARGS: docs/metrics.md. Debian's Prometheus comes to .watch where none is installed.
watch: $(STAMP)  ## the example broker under load, with Prometheus, and Grafana where it is installed
	$(BIN)/python -m examples.watch --bring .watch $(ARGS)

front-door: $(STAMP)  ## walk docs/first-hour.md as a newcomer would, in an empty home: some minutes
	JAVA_HOME="$$($(BIN)/python tests/spark/bring_java.py)" && export JAVA_HOME && \
	  $(BIN)/python -m tests.front_door.walk $(ARGS)

fmt: $(STAMP)  ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint: $(STAMP)  ## formatting and lint, nothing is written
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)  ## mypy --strict on code and tests
	$(BIN)/mypy --strict

layers: $(STAMP)  ## who may import whom
	$(BIN)/lint-imports

house:  ## a report for people: lengths of modules and functions, modules with one importer
	@$(PYTHON) tests/house_report.py

# Public names only: the last word leaves out the modules that they come from.
REFERENCE := tieredstore tieredstore.aio tieredstore.local tieredstore.testing.message_store_contract \
  tieredstore.testing.provider_contract tieredstore.testing.metadata_contract \
  '!tieredstore\.(access|flat|index|jobs|cli|codec|model|driver|providers|metadata|roundlog|spark|exporters|__main__).*'

docs: $(STAMP)  ## build the reference in reference/, and test what the documents say of the code
	$(BIN)/python -W ignore -m pdoc --output-directory reference --docformat markdown $(REFERENCE)
	$(PYTEST) tests/test_docs.py tests/docs -m 'not spark' $(ARGS)

pictures: $(STAMP)  ## make the pictures of the documents anew; needs chromium, which CHROMIUM may name
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python docs/pictures/make.py

check: lint types layers  ## everything that reads the code without running it
	$(PYTEST) -q tests/test_house.py

# A script whose name begins with an underscore is a part of others. JAVA=5.3.3 lets that version of
# RocketMQ run beside ours (JDK and Maven); MINUTES says how long BENCH=steady lasts. RUNS=5 makes
# five runs, and says which of their ratios agree.
bench: $(STAMP)  ## run every benchmark, draw one table (BENCH=name: only that one; JAVA=5.3.3)
	TIEREDSTORE_BENCH_JAVA=$(JAVA) MINUTES=$(MINUTES) $(BIN)/python -m bench $(if $(RUNS),--runs $(RUNS)) $(BENCH)

# What is in them, and what they do in empty environments: docs/releasing.md.
dist: $(STAMP)  ## build sdist and wheel in dist/, and install them with each Python that is here
	$(BIN)/python -m tests.release.check_dist

clean:  ## remove .venv and what tools have left behind
	rm -rf $(VENV) .watch build dist reference .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
