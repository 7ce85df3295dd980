# Everything works on a fresh checkout: what is missing is installed into .venv first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# What is asked for by name has an environment of its own: `make test PYTHON=python3.13` uses .venv-3.13.
VENV := .venv$(if $(filter-out file,$(origin PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The service and nothing more.
SERVICE := $(VENV)-service
# The decoder of `kunicorn.columns` that is compiled: one wheel for every Python from 3.11 on.
COLUMNS := service/columns
COLUMNS_BUILT := build/columns/.built
COLUMNS_SOURCES := $(wildcard $(COLUMNS)/src/*.rs $(COLUMNS)/Cargo.* $(COLUMNS)/pyproject.toml $(COLUMNS)/*.pyi)
NO_COLUMNS := kunicorn_columns is not built, and everything but kafka.fetcher = "own" and jobs that fetch by columns works without it; \
 to have it, install Rust (https://rustup.rs) and a C compiler, and run make again
# Tests start thousands of processes: without bytecode each of them compiles the service anew, for a second of processor
# time. Container images often forbid to write it, which is right where a process is started once.
export PYTHONDONTWRITEBYTECODE :=
export CARGO_TARGET_DIR := $(CURDIR)/build/columns
PIP := pip --disable-pip-version-check --quiet

# For a part of the tests: .venv/bin/python -m pytest tests/unit -k revoke
PYTEST := $(BIN)/python -m pytest
SYSTEM := $(PYTEST) tests/system -m "not long"
# What of the unit and contract tests is run.
FAST := not long
# System tests mostly wait: four side by side, a file at a time, each with a broker of its own.
JOBS ?= 4

.PHONY: help venv columns tools cache demo lint format test test-fast test-pythons test-matrix test-again test-long conformance-long starts healthy-hour pictures chaos soak docs docs-site dist lock clean
.PHONY: test-kubernetes game-day
.PHONY: bench bench-whole bench-growth bench-anatomy bench-quick bench-concurrency bench-scale bench-groups bench-memory bench-handover bench-scrape
.PHONY: bench-fetchers bench-pairs bench-pipeline bench-job-size bench-decoding bench-columns bench-lake-columns bench-store-calls bench-differential bench-features bench-sharing bench-producing

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

venv: $(INSTALLED) $(VENV)/.columns  ## the virtual environment in .venv, exactly as locked

# Where it cannot be built, the next run says so again. Two lines: `make -n` runs the first, and must install nothing.
$(VENV)/.columns: $(INSTALLED) $(COLUMNS_SOURCES)
	@$(MAKE) --no-print-directory $(COLUMNS_BUILT) || { echo '$(NO_COLUMNS)'; rm -f $@; }
	@! test -e $(COLUMNS_BUILT) || { $(BIN)/$(PIP) install --force-reinstall --no-deps build/columns/wheels/*.whl && touch $@; }

$(COLUMNS_BUILT): $(COLUMNS_SOURCES) | $(INSTALLED)
	@rm -rf build/columns/wheels $@
	@command -v cargo >/dev/null
	$(BIN)/maturin build --quiet --release --manifest-path $(COLUMNS)/Cargo.toml --out build/columns/wheels
	@touch $@

columns: venv  ## fails where the decoder of columns is not built, which `make venv` only tells
	@test -e $(VENV)/.columns || { echo '$(NO_COLUMNS)'; exit 1; }

$(INSTALLED): requirements-dev.lock pyproject.toml
	$(call installed-into,$(VENV),requirements-dev.lock)

# What who only wants to use it needs: a twentieth of what tests do. Neither pip, which a later lock file brings anew, nor
# bytecode of modules that are never imported.
$(SERVICE)/.installed: requirements.lock pyproject.toml
	$(call installed-into,$(SERVICE),requirements.lock,--no-compile)
	@$(SERVICE)/bin/$(PIP) uninstall --yes setuptools pip 2>/dev/null

# An environment in the directory $(1), with what the file $(2) has locked, and kunicorn from here; $(3): options of pip.
define installed-into
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); kunicorn needs Python 3.11 or later: make PYTHON=/path/to/python3.11"; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory python3-venv
@test -x $(1)/bin/pip || $(PYTHON) -m venv --clear $(1)
$(1)/bin/$(PIP) install $(3) -r $(2)
$(1)/bin/$(PIP) install $(3) --no-deps -e .
@touch $(1)/.installed
endef

# Debian ships Python without what makes virtual environments.
.PHONY: python3-venv
python3-venv:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get -q update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get -q install -y python3-venv >/dev/null; \
	else \
	  echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; \
	fi

tools: venv  ## what tests need besides: Helm, promtool, Prometheus, hadolint, Kubernetes' schemas, jemalloc; cached
	@$(BIN)/python -m tests.deploy.tools

# In a test they would take from the time after which one that hangs is ended.
cache: venv  ## what tests download besides: Kafka, PostgreSQL, members of an earlier commit; minutes, once
	@$(BIN)/python -m tests.cache

demo: $(SERVICE)/.installed  ## a group on a mock cluster, hurt on purpose and audited; half a minute
	@$(SERVICE)/bin/kunicorn demo

lint: venv  ## style, types, and which package may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if command -v cargo >/dev/null; then \
	  cargo fmt --check --manifest-path $(COLUMNS)/Cargo.toml && \
	  cargo clippy --quiet --locked --release --manifest-path $(COLUMNS)/Cargo.toml -- -D warnings; \
	else \
	  echo '$(COLUMNS) was not looked at: there is no cargo'; \
	fi

format: venv  ## what ruff can put right by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@! command -v cargo >/dev/null || cargo fmt --manifest-path $(COLUMNS)/Cargo.toml

# What is looked at takes one processor, what is rewritten another, and what is fetched a network: side by side.
test: venv  ## lint, unit and contract tests, and the core tests against a real Kafka
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target lint tools cache rewritten
	@$(MAKE) --no-print-directory test-fast
	$(SYSTEM) -n $(JOBS) --dist loadfile

# pytest rewrites asserts, and Python compiles modules, once for all: several processes that begin together would each do
# all of it. What cannot be collected the tests themselves tell.
.PHONY: rewritten
rewritten: venv
	@$(PYTEST) tests/contract tests/unit tests/system --collect-only -qq >/dev/null 2>&1 || true

# A file runs as a whole. The longest ones come first: at the end one process would be left with them.
test-fast: venv  ## unit and contract tests: no broker, a few minutes
	$(PYTEST) tests/contract/worker tests/contract tests/unit -m "$(FAST)" -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-pythons: tools  ## unit and contract tests on each Python from 3.11 to 3.13 that is there
	$(BIN)/python -m tests.pythons

# A cell that was green on this code is not run again: a series that was cut off goes on.
test-matrix: tools  ## each Python, Kafka and Spark, into docs/compatibility.md; ONLY="3.13 4.4.0 spark-4.1.4"
	$(BIN)/python -m tests.matrix $(if $(ONLY),--only $(ONLY))

# reports/again.jsonl is gone on with when a series was cut off. BUSY=2 starts as many busy loops beside.
test-again: venv  ## `make test` RUNS times in a row, each at the first try; BUSY=n, PYTHON=…
	$(BIN)/python -m tests.again --runs $(or $(RUNS),5) --busy $(or $(BUSY),0)

test-long: venv chromium tools  ## the tests that take minutes, and the core tests with the consumer protocol and on Kafka 3.9
	$(PYTEST) -m long
	$(PYTEST) tests/unit tests/contract/assignors -m "not long" --hypothesis-profile fresh -n $(JOBS) --dist loadfile
	$(SYSTEM) --group-protocol consumer
	$(PYTEST) tests/system/group tests/system/service/workers -m "not long" --kafka-version 3.9.1

# The browser in which the status page is judged.
.PHONY: chromium
chromium:  ## installs Chromium where it is missing, on Debian as root
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get -q update >/dev/null && DEBIAN_FRONTEND=noninteractive \
	      apt-get -q install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	  else \
	    echo "there is no chromium; on Debian: sudo apt-get install chromium fonts-dejavu-core"; exit 1; \
	  fi; }

# What they come to is shown on docs/conformance.md; a defect found there becomes a test of its own.
conformance-long: venv  ## a hundred thousand spoilt answers per API, stories of groups and workers; in about an hour
	KUNICORN_RECORD_RUNS=tests/contract/conformance/endurance.json $(PYTEST) -m long -n 2 --dist worksteal \
	  tests/unit/kafka/test_malformed_answers.py tests/contract/conformance/coordinator tests/contract/worker \
	  tests/contract/supervisor
	$(BIN)/python -m tests.contract.conformance

starts: venv  ## starts that cannot work, 200 in each of five ways: all must end with their reason; 20 minutes; RUNS=n
	$(BIN)/python -m tests.system.service.fatal_starts $(if $(RUNS),--runs $(RUNS))

healthy-hour: venv tools  ## the real alerts over a healthy group that is restarted twice: none may fire; MINUTES=n
	$(BIN)/python -m tests.deploy.healthy $(if $(MINUTES),--minutes $(MINUTES))

# IMAGE=…, and HOST=… (this machine's address, as pods reach it) or BROKERS=…; ONLY="rollout drain": parts of it.
test-kubernetes: venv tools  ## the chart and the image on the cluster of KUBECONFIG, audited; IMAGE=…, HOST=…, ONLY=…
	@$(BIN)/python -m tests.kubernetes --write

game-day: venv tools  ## faults in a running release on that cluster: what pages, and whether runbooks heal it; ONLY=…
	@$(BIN)/python -m tests.kubernetes.game_day --write

pictures: venv chromium  ## the documentation's pictures, of a real group and of the demo
	PICTURES=$(CURDIR)/docs/pictures $(PYTEST) tests/system/service/test_page_in_browser.py
	$(BIN)/python -m tests.pictures docs/pictures/demo.svg

# Fresh seeds on each run, after those that failed before; SEED=n repeats one of them alone.
chaos: columns  ## a group hurt in every way there is, on three brokers, over each fetcher; most of an hour; SEED=n, FETCHER=…, MINUTES=n
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED),--write) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(FETCHER),--fetcher $(FETCHER))

# The next run goes on with the legs that docs/soak.jsonl does not have; then `make docs`, and commit both.
soak: columns  ## group after group under thousands of records a second, hurt and accounted for; HOURS=n, LEGS=n at a time, SEED=n, LEG=n
	$(BIN)/python -m tests.soak --hours $(or $(HOURS),1) --side-by-side $(or $(LEGS),1) $(if $(SEED),--seed $(SEED)) $(if $(LEG),--leg $(LEG))

bench: venv  ## ours beside every peer, in about an hour; QUICK=1, ONLY="aiokafka java", KINDS=delay: parts of it
	$(BIN)/python -m bench.peers --write $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(KINDS),--keep --kinds $(KINDS))

# What was measured stays when a series is cut off: the next one goes on. Then commit the page.
bench-whole: columns tools  ## all of docs/benchmarks.md anew, in about three hours; ONLY="growth memory": parts of it
	$(BIN)/python -m bench.whole $(if $(ONLY),--only $(ONLY))

bench-growth: venv  ## how our cost grows with partitions, workers, sizes and work, in about a quarter of an hour
	$(BIN)/python -m bench.peers.growth --write

bench-anatomy: venv  ## where a record's processor time goes, by threads, in about two minutes
	$(BIN)/python -m bench.peers.anatomy --write

bench-concurrency: venv  ## several records in hand, in about two minutes
	$(BIN)/python -m bench.concurrency --write

bench-quick: venv  ## throughput of this machine, in about a minute
	$(BIN)/python -m bench.quick

# Nothing may be slower by more than two in a hundred; what cannot be told from noise passes, with its interval.
bench-pairs: columns  ## another commit's cost a record and this one's, in turns, in about five minutes; OLD=commit, PAIRS=n, ONLY=export
	$(BIN)/python -m bench.pairs --old $(or $(OLD),HEAD~1) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(ONLY),--only $(ONLY))

bench-producing: venv  ## what transactions cost beside at least once, in about three minutes
	$(BIN)/python -m bench.producing --write

bench-sharing: venv  ## one hot partition in eight, shared by number and by load, in about three minutes
	$(BIN)/python -m bench.sharing --write

bench-scale: columns  ## one member with up to 10,000 partitions, in about ten minutes; TMPDIR on a RAM disk helps
	$(BIN)/python -m bench.scale --write

# A case that was measured before is replaced; the others stay.
bench-groups: venv  ## modelled groups of 1,000 members and 100,000 partitions; ONLY="join ten", RULES=java
	$(BIN)/python -m bench.groups --write $(if $(ONLY),--cases $(ONLY)) $(if $(RULES),--rules $(RULES))

bench-memory: columns  ## what a worker takes at most, against memory_per_worker_mb, in about three minutes
	$(BIN)/python -m bench.memory --write

bench-handover: venv  ## pauses of joins, leaves and dead brokers, beside other clients, in about a quarter of an hour
	$(BIN)/python -m bench.handover --write

bench-scrape: venv  ## what a scrape of /metrics costs, in half a minute
	$(BIN)/python -m bench.scrape --write

bench-pipeline: venv  ## a backfill on Spark against bare clients and Spark's own connector, in about five minutes
	$(BIN)/python -m bench.pipeline --write

bench-job-size: venv  ## what a job over 10,000 partitions costs its driver, in about two minutes
	$(BIN)/python -m bench.job_size --write

bench-decoding: venv  ## what decoding adds to a record, in half a minute
	$(BIN)/python -m bench.decoding --write

bench-lake-columns: columns  ## what the form of a value costs an export and the data source, in a minute
	$(BIN)/python -m bench.lake_columns --write

bench-store-calls: venv  ## requests to an object store by kind, a task and a round, in about ten minutes
	$(BIN)/python -m bench.store_calls --write

bench-fetchers: columns  ## a worker over librdkafka and over our own fetcher beside a bare loop
	$(BIN)/python -m bench.fetchers --write

bench-columns: columns  ## what decoding to columns costs a record, by codec, in a minute
	$(BIN)/python -m bench.columns --write

bench-features: venv  ## what each feature adds to a record, in half a minute
	$(BIN)/python -m bench.features --write

bench-differential: venv  ## ours beside confluent-kafka's members through the same faults, three times, in about 25 minutes
	$(BIN)/python -m bench.differential --write
	$(BIN)/python -m tests.contract.conformance

docs: venv  ## the pages, and the chart's schema and dashboard, that are generated from the code
	$(BIN)/python -m kunicorn.settings
	$(BIN)/python -m kunicorn.observe
	$(BIN)/python -m tests.matrix --page
	$(BIN)/python -m tests.contract.conformance
	$(BIN)/python -m tests.kubernetes.page
	$(BIN)/python -m tests.kubernetes.game_page
	$(BIN)/python -m tests.deploy.chart_page
	$(BIN)/python -m tests.soak.page
	$(BIN)/python -m bench.groups --page

# The wheel is built from the archive, which so has all that it takes. Dated by the commit: the same files each time.
# The wheel of columns is for this machine's processor and libraries; .github/workflows/columns.yml has the others.
dist: columns  ## the archive of sources and the wheels, in dist/; in half a minute
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) $(BIN)/python -m build --outdir dist .
	cp build/columns/wheels/*.whl dist/

docs-site: venv  ## the documentation as a site, in build/site; a link that leads nowhere fails it
	$(BIN)/sphinx-build -q -W --keep-going -c docs . build/site
	@echo "build/site/README.html"

COMPILE := $(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host
EXTRAS := dev pipeline delta iceberg connect schema-registry tracing otlp cookbook docs
# Clusters' versions, each with a lock file of its own: those of tests/system/pipeline/versions.py, on which jobs are tried.
SPARKS := 3.5.9 4.0.5 4.1.4 4.2.1 4.3.0

# Of the service, of everything, of the images for columns and for pipelines, and of what builds the two wheels in an image.
lock: venv  ## the lock files anew, with hashes, from pyproject.toml
	$(BIN)/$(PIP) install pip-tools
	$(COMPILE) -o requirements.lock pyproject.toml
	$(COMPILE) $(EXTRAS:%=--extra %) -c requirements.lock -o requirements-dev.lock pyproject.toml
	$(COMPILE) --extra arrow -c requirements-dev.lock -o requirements-arrow.lock pyproject.toml
	$(COMPILE) --extra pipeline -c requirements-dev.lock -o requirements-pipeline.lock pyproject.toml
	for spark in $(SPARKS); do \
	  $(COMPILE) --extra pipeline --upgrade-package pyspark==$$spark -c requirements.lock \
	    -o requirements-pipeline-$${spark%.*}.lock pyproject.toml; \
	done
	$(COMPILE) --only-build-deps --build-deps-for wheel -o requirements-build.lock pyproject.toml
	$(COMPILE) --only-build-deps --build-deps-for wheel -o requirements-columns.lock $(COLUMNS)/pyproject.toml

clean:  ## caches and build results; .venv stays
	rm -rf build dist reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find service tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
