# `make run` needs Python >= 3.11 and nothing else; `make test` installs what the tests need.
# POSIX sh and make 3.81, so that macOS's own make will do.

PORT ?= 6379
DATA ?= data
ARGS ?=
PYTEST_ARGS ?=
SEEDS ?= 50
FROM ?= 1
SEED ?=
ONLY ?=
PART ?= 1/1
BENCH_ARGS ?=
REDIS_SOURCE ?=
WHEELS ?= dist

BIN := .venv/bin
# The Redis that the tests compare with, where the system has another, see .ci/install-redis.
export PATH := $(CURDIR)/build/redis/bin:$(PATH)
TEST_COMPILED = RIVERBED_FORM=compiled .venv-compiled/bin/python -m pytest -n auto $(PYTEST_ARGS)

.PHONY: help run wheels compiled test test-sources test-compiled simulate mutants redis-tests quick lint bench bench-compiled lock clean

help:
	@echo "make run     start riverbed-server on port $(PORT) with its data in $(DATA)/ (PORT=, DATA=, ARGS='--appendfsync everysec')"
	@echo "make wheels  a wheel in dist/ with compiled modules, for this system and this version of Python"
	@echo "make test    linters, types, import contracts and every test, those of compiled code in both forms (PYTEST_ARGS='-k xadd')"
	@echo "make test-compiled  these tests with the wheel of compiled modules in the place of the sources"
	@echo "make simulate  servers, clients and faults in virtual time (SEEDS=50, FROM=1, or one with SEED=)"
	@echo "make mutants  planted bugs: which of them the simulation and the tests find (ONLY=name, PART=3/15)"
	@echo "make redis-tests  Redis's own tests of streams and users against Riverbed (REDIS_SOURCE=redis-7.0.15; needs tclsh)"
	@echo "make quick   linters, types, contracts, and the tests of the sources, without the slow ones and those of Spark"
	@echo "make lint    linters, types and import contracts alone"
	@echo "make bench   Riverbed beside redis-server (BENCH_ARGS=); make bench-compiled takes the wheel of compiled modules"
	@echo "make lock    renew requirements/*.txt: the versions and hashes that the other targets install"
	@echo "make clean   remove the virtual environment and caches; data stays"

run: .venv/installed
	@exec $(BIN)/riverbed-server --port $(PORT) --dir $(DATA) $(ARGS)

# Not isolated, because mypyc has mypy look into what Riverbed depends on.
wheels: .venv/installed-compiler
	rm -rf build/compiled
	RIVERBED_COMPILE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(WHEELS) .

# pytest comes last, so that its summary is the last thing printed.  PYTEST_ARGS='-n 0' runs one test at a time.
# The compiler takes one processor, for as long as the rest of the installation, the linters and the first tests of the
# sources take.  The sources come first: what fails in them fails in the compiled form as well.
test: .venv/installed-compiler
	@sh .ci/install-test-tools
	$(MAKE) --no-print-directory -j 2 compiled test-sources
	$(TEST_COMPILED)

# Tests that start make themselves are not to share this one's jobs.
test-sources: lint
	unset MAKEFLAGS MFLAGS; $(BIN)/pytest -n auto $(PYTEST_ARGS)

# .venv-compiled has the wheel, and finds in .venv all that is not Riverbed.  Without a C compiler this fails.
compiled: .venv/installed-compiler
	$(MAKE) --no-print-directory wheels WHEELS=build/compiled/dist
	rm -rf .venv-compiled
	$(BIN)/python -m tests.support.installation build/compiled/dist/*.whl .venv-compiled

test-compiled: compiled .venv/installed-test
	@sh .ci/install-test-tools
	$(TEST_COMPILED)

simulate: .venv/installed-test
	$(BIN)/python -m tests.support.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(FROM))

mutants: .venv/installed-test
	$(BIN)/python -m tests.support.mutants --part $(PART) $(if $(ONLY),--only $(ONLY))

redis-tests: .venv/installed-test
	@test -n "$(REDIS_SOURCE)" || { echo "give the sources: make redis-tests REDIS_SOURCE=redis-7.0.15 (apt-get source redis)"; exit 1; }
	$(BIN)/python -m tests.support.redis_suite $(REDIS_SOURCE)

quick: lint
	@sh .ci/install-test-tools
	$(BIN)/pytest -n auto -m 'not slow and not spark' $(PYTEST_ARGS)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed-bench
	@sh .ci/install-test-tools
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-compiled: .venv/installed-bench compiled
	@sh .ci/install-test-tools
	.venv-compiled/bin/python -m benchmarks $(BENCH_ARGS)

clean:
	rm -rf .venv .venv-compiled build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f store/wire/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Editable, so that a change of code needs no new installation; a change of pyproject.toml or of the native module does.
# Versions and hashes come from requirements/, setuptools' among them: an isolated build would fetch another one.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := setup.py store/wire/native.c $(wildcard store/wire/c/*.h)

.venv/installed: .venv/created pyproject.toml requirements/run.txt $(NATIVE)
	$(PIP_INSTALL) --require-hashes --requirement requirements/run.txt
	$(PIP_INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

.venv/installed-compiler: .venv/installed requirements/compile.txt
	$(PIP_INSTALL) --require-hashes --requirement requirements/compile.txt
	@touch $@

.venv/installed-test: .venv/installed-compiler requirements/test.txt
	$(PIP_INSTALL) --no-build-isolation --require-hashes --requirement requirements/test.txt
	@touch $@

.venv/installed-bench: .venv/installed-test requirements/bench.txt
	$(PIP_INSTALL) --no-build-isolation --require-hashes --requirement requirements/bench.txt
	@touch $@

# Renews all versions; `make test` says whether they serve.  uv writes the hashes of every platform and Python.
UV_COMPILE := .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --custom-compile-command "make lock"

lock:
	@sh .ci/make-venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(UV_COMPILE) --extra build --output-file requirements/run.txt pyproject.toml
	$(UV_COMPILE) --extra build --extra compile --constraint requirements/run.txt \
		--output-file requirements/compile.txt pyproject.toml
	$(UV_COMPILE) --extra build --extra compile --extra test --extra sql --extra spark --constraint requirements/compile.txt \
		--output-file requirements/test.txt pyproject.toml
	$(UV_COMPILE) --extra build --extra compile --extra test --extra sql --extra spark --extra bench \
		--constraint requirements/test.txt --output-file requirements/bench.txt pyproject.toml
	rm -rf .venv-lock

.venv/created: .ci/make-venv
	@sh .ci/make-venv .venv
	@touch $@
