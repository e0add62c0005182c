# Everything runs in environments of its own, made on demand below ENVS; `make help` lists
# the targets.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

ENVS ?= .envs
# Not just found but run: a version manager's stub is found for versions it does not have.
PYTHONS := 3.10 3.11 3.12 3.13 3.14
PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3.10)

VERSIONS := 215 221
TF_ENVS := $(VERSIONS:%=$(ENVS)/tf%/.ready)
LINT_ENV := $(ENVS)/lint/.ready
# The wheel also has native libraries for the release candidate of the next TensorFlow.
WHEEL_ENVS := $(TF_ENVS) $(ENVS)/tf222/.ready
LINT := $(ENVS)/lint/bin

# The version of TensorFlow that a command uses which does not use both.
TF ?= 221
# More arguments for what a command runs: pytest, the example, a benchmark.
ARGS ?=

SHORT := not full and not soak
# compat_tests/support/version_shares.py lists which tests run on one version of TensorFlow only.
# The full tier runs the quick ones among them on both.
QUICK := $(SHORT) and not elsewhere
FULL := not soak and not (full and elsewhere)

.PHONY: help
help:  ## this list (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Settings: TF=215|221|222 (for one version), ARGS='...', PYTHON=python3.10, ENVS=$(ENVS)."

# --- Environments -------------------------------------------------------------------------
# `.ready` is written last: an environment without it was interrupted, and is made anew.

.PHONY: envs
envs: $(TF_ENVS) $(LINT_ENV)  ## make the three environments (the other targets do so by need)

$(ENVS)/tf215/.ready: EXTRAS := legacy,migrate,test
$(ENVS)/tf215/.ready: PYTHONS := 3.10 3.11
$(ENVS)/tf221/.ready: EXTRAS := kerasrs,migrate,test
$(ENVS)/tf221/.ready: PYTHONS := 3.10 3.11 3.12 3.13

# Two environments at once would both write the package's egg-info, so in `make test` one comes after the other.
$(ENVS)/tf215/.ready: | $(if $(IN_TURN),$(ENVS)/tf221/.ready)

# pip is run by the environment's Python, since a script's first line fails in a long path. Python compiles what is
# imported: less than half of it all.
PIP = PIP_COMPILE=0 $(@D)/bin/python -m pip --disable-pip-version-check

define new_env
	@$(PYTHON) -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in "$(PYTHONS)".split())' \
	    || { echo "$(PYTHON) is none of Python $(PYTHONS): set PYTHON to one."; exit 1; }
	@echo "Making $(@D) ..."
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
endef

$(TF_ENVS): $(ENVS)/tf%/.ready: constraints/tf%.txt setup.cfg setup.py compat_tests/setup.cfg compat_tests/setup.py
	$(new_env)
	@$(PIP) install -qq -c $< -e '.[$(EXTRAS)]' -e ./compat_tests
	@touch $@

# There is no tf_keras that admits TensorFlow 2.22, and that for 2.21 works with it. So the constraints
# list every package of this environment, and pip resolves nothing.
$(ENVS)/tf222/.ready: constraints/tf222.txt setup.cfg setup.py compat_tests/setup.cfg compat_tests/setup.py
	$(new_env)
	@$(PIP) install -qq --no-deps -r $< -e . -e ./compat_tests
	@touch $@

$(LINT_ENV): constraints/lint.txt
	$(new_env)
	@$(PIP) install -qq -r $<
	@touch $@

# --- Checks -------------------------------------------------------------------------------

.PHONY: test
test:  ## lint, the distributions, and the quick tests on both versions of TensorFlow
	$(both) --jobs=3 IN_TURN=yes quick-221 quick-215 lint dist-check

# Five targets, so that `make --keep-going` shows what each of them finds.
.PHONY: lint lint-format lint-rules lint-types lint-imports docs
lint: lint-format lint-rules lint-types lint-imports docs  ## format, rules, types, import directions, links

lint-format: $(LINT_ENV)
	$(LINT)/ruff format --check .

lint-rules: $(LINT_ENV)
	$(LINT)/ruff check .

lint-types: $(LINT_ENV)
	$(LINT)/mypy

lint-imports: $(LINT_ENV)
	$(LINT)/lint-imports --no-logo

docs: $(LINT_ENV) $(ENVS)/tf221/.ready  ## build the pages into build/docs; a link or an anchor that leads nowhere fails
	RULES_PYTHON=$(abspath $(ENVS))/tf221/bin/python $(LINT)/mkdocs build

.PHONY: format
format: $(LINT_ENV)  ## reformat, and mend what ruff can mend safely
	$(LINT)/ruff format .
	$(LINT)/ruff check --fix .

# The two versions run side by side, one core each; what a version prints is kept until it is
# through. One of them failing does not stop the other. `test` has a third job, because the
# tests wait for other processes a quarter of their time.
both = @$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target

.PHONY: quick test-full soak
quick: $(TF_ENVS)
	$(both) $(VERSIONS:%=quick-%)

test-full: $(TF_ENVS)  ## the thorough tests too, on both versions
	$(both) $(VERSIONS:%=full-%)

soak: $(TF_ENVS)  ## the endurance tests, on both versions
	$(both) $(VERSIONS:%=soak-%)

quick-%: $(ENVS)/tf%/.ready
	$(ENVS)/tf$*/bin/python -m pytest -m '$(QUICK)' compat_tests

full-%: $(ENVS)/tf%/.ready
	$(ENVS)/tf$*/bin/python -m pytest -m '$(FULL)' compat_tests

soak-%: $(ENVS)/tf%/.ready
	$(ENVS)/tf$*/bin/python -m pytest -m 'soak and not elsewhere' compat_tests
	$(MAKE) --no-print-directory sanitize sanitize-threads TF=$*

# The newest TensorFlow on the registry, a pre-release if that is newer. For a nightly build:
# make test-next NEXT=tf-nightly NEXT_KERAS=tf-keras-nightly
NEXT ?= tensorflow
NEXT_KERAS ?= tf_keras

.PHONY: test-next
test-next:  ## the quick tests on the newest TensorFlow, pre-releases included (not part of test)
	@$(MAKE) --no-print-directory -B $(ENVS)/next/.ready
	$(ENVS)/next/bin/python -m pytest -m '$(SHORT)' compat_tests

# tf_keras and keras-rs are installed without their requirements: the first may lag behind TensorFlow, and the second
# would bring a second Keras 3.
$(ENVS)/next/.ready:
	$(new_env)
	@$(PIP) install -qq --pre $(NEXT)
	@$(PIP) install -qq google-crc32c tensorboard libcst tf_slim pytest hypothesis coverage pandas
	@$(PIP) install -qq --no-deps keras-rs
	@$(PIP) install -qq --no-deps --pre $(NEXT_KERAS) -e . -e ./compat_tests
	@touch $@

# What tf.functions run does not count where TensorFlow rewrites them first (AutoGraph).
COVERED := $(CURDIR)/build/coverage

.PHONY: coverage
coverage: $(TF_ENVS)  ## lines and branches that tests reach, both versions together: make coverage TIER='not soak and not (full and elsewhere)'
	rm -rf $(COVERED) && mkdir -p $(COVERED)
	$(both) $(VERSIONS:%=coverage-%)
	cd $(COVERED) && $(abspath $(ENVS))/tf$(TF)/bin/python -m coverage combine -q
	$(ENVS)/tf$(TF)/bin/python -m coverage html -q --data-file=$(COVERED)/.coverage -d $(COVERED)/html
	$(ENVS)/tf$(TF)/bin/python -m coverage json -q --data-file=$(COVERED)/.coverage -o $(COVERED)/coverage.json
	$(ENVS)/tf$(TF)/bin/python .ci/coverage_figures.py $(COVERED)/coverage.json

TIER ?= $(QUICK)
coverage-%: $(ENVS)/tf%/.ready
	COVERAGE_FILE=$(COVERED)/.coverage.tf$* $(ENVS)/tf$*/bin/python -m coverage run \
	    -m pytest -q -m '$(TIER)' $(if $(ARGS),$(ARGS),compat_tests)

# The native code under AddressSanitizer, and what of UndefinedBehaviorSanitizer lets TensorFlow 2.21's
# headers compile. TensorFlow itself is not built with them: leaks, and what it does by itself, are
# not looked for.
SANITIZERS := address,alignment,bounds,shift,signed-integer-overflow

.PHONY: sanitize
sanitize: CXX ?= g++
sanitize: $(ENVS)/tf$(TF)/.ready  ## the tests of the native code under sanitizers (part of soak)
	ESTIMATOR_BRIDGE_SANITIZE=$(SANITIZERS) ESTIMATOR_BRIDGE_NATIVE=1 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	$(ENVS)/tf$(TF)/bin/python -m pytest -q -m '$(SHORT)' compat_tests/native/test_native_steps.py \
	    compat_tests/native/test_native_bad_input.py compat_tests/native/test_native_row_splits.py \
	    compat_tests/native/test_native_ids_of_step.py \
	    compat_tests/tpu/test_software_tpu_bad_input.py \
	    compat_tests/sparsecore \
	    -k 'not never_copies' $(ARGS)  # which limits the memory that sanitizers need

# The parts that threads share, by themselves: TensorFlow's threads hand kernels over in ways that
# ThreadSanitizer does not see, so that in a whole process it takes everything for a race.
THREADS := compat_tests/threads

.PHONY: sanitize-threads
sanitize-threads: CXX ?= g++
sanitize-threads: $(ENVS)/tf$(TF)/.ready  ## the native code's threads under ThreadSanitizer (part of soak)
	mkdir -p build
	$(CXX) -g -O1 -w -fsanitize=thread -I$(THREADS) -Itf2_engine/native $(THREADS)/threads.cc \
	    $$($(ENVS)/tf$(TF)/bin/python -c "import tensorflow as tf; s = tf.sysconfig; \
	        print(*s.get_compile_flags(), *s.get_link_flags(), '-Wl,-rpath,' + s.get_lib())" 2>/dev/null) \
	    -pthread -o build/threads-tf$(TF)
	TSAN_OPTIONS=exitcode=66 build/threads-tf$(TF)

.PHONY: test-one
test-one: $(ENVS)/tf$(TF)/.ready  ## some tests on one version: make test-one TF=215 ARGS='-k adagrad'
	$(ENVS)/tf$(TF)/bin/python -m pytest -m '$(SHORT)' $(if $(ARGS),$(ARGS),compat_tests)

# --- Pages in a browser -------------------------------------------------------------------
# They need Node 20.19 or newer and npm. Chromium comes as a package; no root, no display.

PAGES := build/pages

$(ENVS)/browser/.ready: constraints/browser.json
	@echo "Making $(@D) ..."
	@rm -rf $(@D)
	@mkdir -p $(@D)
	@cp $< $(@D)/package.json
	@cd $(@D) && npm install --silent --no-audit --no-fund --ignore-scripts
	@touch $@

.PHONY: page
page: $(ENVS)/tf$(TF)/.ready $(ENVS)/browser/.ready  ## load pages of verify in headless Chromium; pictures in build/pages
	@rm -rf $(PAGES)
	$(ENVS)/tf$(TF)/bin/python -m compat_tests.browser.pages $(PAGES)
	NODE_PATH=$(ENVS)/browser/node_modules node compat_tests/browser/check.js $(PAGES)/*.html $(ARGS)

.PHONY: site-page
site-page: docs $(ENVS)/browser/.ready  ## read all of the documentation in headless Chromium, at three sizes; pictures in build/pictures
	NODE_PATH=$(ENVS)/browser/node_modules node compat_tests/browser/site.js build/docs

# --- What verify sees --------------------------------------------------------------------

.PHONY: verify-power
verify-power: $(TF_ENVS)  ## plants faults, compares sound pairs, and writes docs/verify_power.md with what verify finds
	$(ENVS)/tf215/bin/python -m compat_tests.verify.power --what pairs \
	    --other $(abspath $(ENVS))/tf221/bin/python $(ARGS)
	$(ENVS)/tf221/bin/python -m compat_tests.verify.power $(ARGS)

# --- Libraries that need estimators -------------------------------------------------------
# Most of them ask for a TensorFlow that still had estimators: they are installed without that.

$(ENVS)/libraries/.ready: constraints/tf221.txt constraints/libraries.txt setup.cfg setup.py compat_tests/setup.cfg
	$(new_env)
	@$(PIP) install -qq -c $< -e '.[test]' -e ./compat_tests
	@$(PIP) install -qq --no-deps -r constraints/libraries.txt
	@touch $@

.PHONY: libraries
libraries: $(ENVS)/libraries/.ready  ## programs of libraries that are built on tf.estimator: docs/libraries.md
	$(ENVS)/libraries/bin/python -m pytest $(ARGS) compat_tests/libraries

# --- PyTorch ------------------------------------------------------------------------------
# TorchRec asks for the FBGEMM of GPUs, so it is installed without what it asks for.

$(ENVS)/torch/.ready: constraints/tf221.txt constraints/torch.txt setup.cfg setup.py compat_tests/setup.cfg
	$(new_env)
	@$(PIP) install -qq -c $< -e '.[test]' -e ./compat_tests
	@$(PIP) install -qq --no-deps -r constraints/torch.txt
	@touch $@

.PHONY: torch-tests
torch-tests: $(ENVS)/torch/.ready  ## checkpoints in TorchRec, and optimizers of torch, FBGEMM and optax beside ours: docs/torch.md
	$(ENVS)/torch/bin/python -m pytest $(ARGS) compat_tests/pytorch

# --- The example --------------------------------------------------------------------------

MOVIELENS := examples/movielens

.PHONY: demo
demo: MODEL_DIR = $(MOVIELENS)/model_dir/tf$(TF)
demo: $(ENVS)/tf$(TF)/.ready  ## train the MovieLens example, a legacy program run unchanged
	$(ENVS)/tf$(TF)/bin/python $(MOVIELENS)/fetch.py --data_dir $(MOVIELENS)/data
	rm -rf $(MODEL_DIR)
	$(ENVS)/tf$(TF)/bin/estimator-bridge run $(MOVIELENS)/train.py \
	    --data_dir $(MOVIELENS)/data --model_dir $(MODEL_DIR) --use_tpu $(ARGS)

.PHONY: port-demo
port-demo: PORT = $(MOVIELENS)/model_dir/port
port-demo: FLAGS = --data_dir $(MOVIELENS)/data --use_tpu
port-demo: $(ENVS)/tf215/.ready $(ENVS)/torch/.ready  ## train the example, go on in PyTorch, and verify 20 of its steps there
	$(ENVS)/tf215/bin/python $(MOVIELENS)/fetch.py --data_dir $(MOVIELENS)/data
	rm -rf $(PORT)
	$(ENVS)/tf215/bin/estimator-bridge run $(MOVIELENS)/train.py $(FLAGS) --model_dir $(PORT)/model
	$(ENVS)/tf215/bin/estimator-bridge convert --to torch $(PORT)/model/model.ckpt-800 $(PORT)/converted
	$(ENVS)/torch/bin/python $(MOVIELENS)/train_on_in_pytorch.py --data_dir $(MOVIELENS)/data $(PORT)/converted
	$(ENVS)/tf215/bin/estimator-bridge record -o $(PORT)/recorded --begin-from $(PORT)/model/model.ckpt-800 \
	    $(MOVIELENS)/train.py $(FLAGS) --model_dir $(PORT)/unused --dropout=0
	$(ENVS)/torch/bin/python $(MOVIELENS)/port_to_pytorch.py \
	    --data_dir $(MOVIELENS)/data $(PORT)/recorded $(PORT)/replayed
	$(ENVS)/tf215/bin/estimator-bridge verify --against-recording $(PORT)/recorded $(PORT)/replayed

.PHONY: cluster-demo
cluster-demo: MODEL_DIR = $(MOVIELENS)/model_dir/cluster_tf$(TF)
cluster-demo: $(ENVS)/tf$(TF)/.ready  ## the same program on a chief, two workers and two parameter servers
	$(ENVS)/tf$(TF)/bin/python $(MOVIELENS)/fetch.py --data_dir $(MOVIELENS)/data
	rm -rf $(MODEL_DIR)
	$(ENVS)/tf$(TF)/bin/python examples/local_cluster.py --workers 2 --ps 2 -- $(MOVIELENS)/train.py \
	    --data_dir $(MOVIELENS)/data --model_dir $(MODEL_DIR) --use_tpu $(ARGS)

# --- Distributions ------------------------------------------------------------------------

.PHONY: dist dist-check
dist: $(WHEEL_ENVS) $(LINT_ENV)  ## build the wheel and the source distribution, twice, and check them
	$(ENVS)/tf$(TF)/bin/python .ci/dist.py build/dist --mypy $(LINT)/mypy \
	    --native $(WHEEL_ENVS:%/.ready=%/bin/python)

# Compiling the native libraries takes 95 % of the time of `dist`, so the tests check the rest alone.
dist-check: $(ENVS)/tf$(TF)/.ready $(LINT_ENV)
	$(ENVS)/tf$(TF)/bin/python .ci/dist.py build/dist-check --mypy $(LINT)/mypy

# --- Benchmarks ---------------------------------------------------------------------------
# The figures are of this machine; ratios are of one run. Other systems have environments of
# their own, which nothing else uses.

PEERS := bench-recommenders bench-torch
GPU := bench-gpu bench-torch-gpu
BENCH := native-session tf-session bridge-estimator stock-estimator
BENCH_PEERS := recommenders-sparse recommenders-ragged torch fbgemm
BENCH_GPU := native-session native-session-on-gpu native-packed native-packed-on-gpu keras-fit tf-session torch-gpu fbgemm-gpu

.PHONY: bench bench-peers bench-gpu bench-gpu-scaling gpu-check bench-small bench-start-up bench-scaling
bench: $(ENVS)/tf$(TF)/.ready $(ENVS)/tf215/.ready  ## how fast it is, beside stock: make bench TF=215 ARGS='--workload onehot'
	$(ENVS)/tf$(TF)/bin/python -m benchmarks.run --envs $(ENVS) --contenders $(BENCH) $(ARGS)

bench-peers: $(ENVS)/tf$(TF)/.ready $(PEERS:%=$(ENVS)/%/.ready)  ## how fast it is, beside other systems
	$(ENVS)/tf$(TF)/bin/python -m benchmarks.run --envs $(ENVS) \
	    --contenders native-session $(BENCH_PEERS) $(ARGS)

bench-small: $(ENVS)/tf215/.ready  ## steps per second of a small model, beside stock's
	$(ENVS)/tf215/bin/python -m benchmarks.small $(ARGS)

bench-start-up: $(ENVS)/tf215/.ready  ## seconds from the start of a program to its first steps, beside stock's
	$(ENVS)/tf215/bin/python -m benchmarks.start_up $(ARGS)

bench-gpu: $(ENVS)/bench-gpu/.ready $(ENVS)/bench-torch-gpu/.ready  ## how fast it is on a GPU of NVIDIA, beside torch and FBGEMM there
	$(ENVS)/bench-gpu/bin/python -m benchmarks.run --envs $(ENVS) --contenders $(BENCH_GPU) $(ARGS)

bench-gpu-scaling: $(ENVS)/bench-gpu/.ready  ## how time and memory grow with rows and batch on a GPU of NVIDIA
	$(ENVS)/bench-gpu/bin/python -m benchmarks.scaling --axis rows batch $(ARGS)

GPU_TESTS := test_gpu_ops.py test_gpu_batches.py test_gpu_kernels.py test_conformance.py
gpu-check: $(ENVS)/bench-gpu/.ready  ## on a machine with a GPU of NVIDIA: the tests that need one, and a short benchmark
	$(ENVS)/bench-gpu/bin/python -m pytest -q -m '$(SHORT)' -k 'gpu or native' $(GPU_TESTS:%=compat_tests/engine/%)
	@$(MAKE) --no-print-directory bench-gpu ARGS='--rounds 5'

bench-scaling: $(ENVS)/tf$(TF)/.ready  ## how time and memory grow with rows, batch, tables, threads
	$(ENVS)/tf$(TF)/bin/python -m benchmarks.scaling $(ARGS)

$(PEERS:%=$(ENVS)/%/.ready) $(GPU:%=$(ENVS)/%/.ready): $(ENVS)/%/.ready: constraints/%.txt
	$(new_env)
	@$(PIP) install -qq -r $<
	@touch $@

.PHONY: clean
clean:  ## remove the environments, caches and builds
	rm -rf $(ENVS)/tf215 $(ENVS)/tf221 $(ENVS)/tf222 $(ENVS)/next $(ENVS)/lint $(PEERS:%=$(ENVS)/%) $(GPU:%=$(ENVS)/%) $(ENVS)/browser $(ENVS)/libraries $(ENVS)/torch build dist *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find benchmarks compat_tests estimator_bridge tf2_engine examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
