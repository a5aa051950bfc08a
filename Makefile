# The two commands of the README are `make demo` and `make test`. Each sets up .venv by itself; tools/venv.py says how.
# Settings:  PYTHON=python3.12   the interpreter .venv is made with (default: python3)
#            JOBS=8              processes that run the tests (default: 2)
#            ARGS='-k box -x'    more arguments for pytest or the program that is run

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

# The extras each target needs. mypy sees what is installed, so lint takes the same set as the tests.
DEMO_EXTRAS = cli gymnasium
TEST_EXTRAS = torch jax gymnasium video hdf5 parquet image minari ray huggingface sb3 cli dev

# Somebody else's packages on the path (a ROS shell has them) must not be the ones that are tested.
unexport PYTHONPATH PYTHONHOME

RUN := .venv/bin/python
# A PYTHON given by the user means that version; the default is content with the .venv that is there.
SETUP = @$(PYTHON) tools/venv.py $(if $(filter file,$(origin PYTHON)),,--exact)

comma := ,
space := $(subst ,, )

.DEFAULT_GOAL := help
.PHONY: help demo test test-lowest test-newest soak learn dist lint docs format bench bench-check bench-report bench-profile clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## run the demonstration, `unienv demo` (installs Gymnasium, but neither PyTorch nor JAX)
	$(SETUP) $(DEMO_EXTRAS)
	@$(RUN) -m unienv_data.cli demo $(ARGS)

test: ## run the tests, all but the long ones
	$(SETUP) $(TEST_EXTRAS)
	$(RUN) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-lowest: ## run the tests with the lowest versions that pyproject.toml allows, in build/lowest
	$(PYTHON) -m venv build/lowest
	$(PYTHON) tools/lowest.py $(TEST_EXTRAS) >build/lowest/constraints.txt
	build/lowest/bin/python -m pip install -q -c build/lowest/constraints.txt -e '.[$(subst $(space),$(comma),$(TEST_EXTRAS))]'
	build/lowest/bin/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-newest: ## run the tests with the newest versions of everything, in build/newest
	$(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install -q -U -e '.[$(subst $(space),$(comma),$(TEST_EXTRAS))]'
	build/newest/bin/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

learn: ## run the recipes of examples/ over three seeds and check that they learn; half an hour
	$(SETUP) $(TEST_EXTRAS)
	$(RUN) tools/learn.py $(ARGS)

dist: ## build the source distribution and the wheel into dist/, and run the tests of the former
	$(SETUP) $(TEST_EXTRAS)
	rm -rf dist build/sdist
	$(RUN) -m build
	mkdir -p build/sdist
	tar -xzf dist/*.tar.gz -C build/sdist --strip-components=1
	cd build/sdist && PYTHONPATH=src ../../$(RUN) -m pytest -n $(JOBS) --dist worksteal -p no:cacheprovider $(ARGS)

soak: ## run the long tests
	$(SETUP) $(TEST_EXTRAS)
	$(RUN) -m pytest -m soak --timeout 7200 $(ARGS)

lint: ## ruff check, ruff format --check, mypy
	$(SETUP) $(TEST_EXTRAS)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

docs: ## build the documentation into build/docs; a warning is an error
	$(SETUP) docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

format: ## let ruff rewrite what it can
	$(SETUP) $(TEST_EXTRAS)
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

bench: ## compare with other libraries, side by side (installs them); about twenty minutes
	$(SETUP) bench
	@$(RUN) benchmarks/run.py $(ARGS)

bench-check: ## hold the comparison against benchmarks/bars.toml; three minutes
	$(SETUP) bench
	@$(RUN) benchmarks/check.py $(ARGS)

bench-report: ## write docs/benchmarks.md, and the full tables to build/benchmarks.md
	$(SETUP) bench
	@$(RUN) benchmarks/report.py $(ARGS)

bench-profile: ## where the time of one contender goes: ARGS="SUBJECT 'WORK' 'CONTENDER'"
	$(SETUP) bench
	@$(RUN) benchmarks/profile_contender.py $(ARGS)

clean: ## remove .venv and everything the tools left behind
	rm -rf .venv .venv.lock build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
