# Two commands: `make demo` and `make test`, and after each edit `make check`. They run `make setup` first, which does nothing
# the second time.
# Another torch, beside the first: make test-conformance VENV=.venv-oldest TORCH=oldest
PYTHON ?= python3
# newest or oldest of those that pyproject.toml supports, or a requirement: torch==2.13.*
TORCH ?= newest
VENV ?= .venv
PRESET ?= release
JOBS ?= $(shell nproc)
DEMO_ARGS ?=
FUZZ_SECONDS ?= 30
FIGURES ?= all
RECORD ?=
GPU_ARCH ?= 90
MPIS ?= openmpi mpich
PYTHONS ?= 3.11 3.12 3.13
TORCHES ?= 2.11 2.12 2.13 2.14 2.15
# `make test T=quant`: only C++ tests in files with this in their path, and Python tests with it in their names.
T ?=
# Test files at a time. Each runs worlds of four processes and more; above two on two cores timeouts come too near.
TEST_WORKERS ?= 2
# What the torch module is run with under sanitizers: each of its parts, in few worlds.
SANITIZED_TESTS ?= $(addprefix tests/python/,backend/test_collective_calls.py \
  backend/test_gradients.py backend/test_interface.py \
  group/test_groups.py::test_group model/test_units.py)

STAMPS := build/stamps/$(VENV)
NATIVE_SOURCES := CMakeLists.txt pyproject.toml tools/keep_ptxas_report $(wildcard cmake/*) $(shell find src kernels include topology -type f)
PYTHON_FILES := python benchmarks examples $(wildcard tests/python tests/support tests/conformance tests/faults tests/fuzz tests/gpu) tools
CXX_FILES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# The core is built several times: for torch, for its own tests, for each MPI. Where flags and the compiler's name are equal
# and there is ccache, once. (Asked at every command: `make setup` may install it.)
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CMAKE_CUDA_COMPILER_LAUNCHER ?= $(CMAKE_CXX_COMPILER_LAUNCHER)
ifeq ($(origin CXX),default)
  CXX := c++
endif
export CXX
# Tests start hundreds of Python programs: what one has compiled to bytecode the next one reads.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup wheel wheels demo check test build-cpp test-cpp test-large test-mpi test-python test-quick test-torchft test-conformance test-units test-versions test-examples lint format tidy gpu-programs \
  sanitize test-sanitized bench record figures fuzz clean FORCE

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: $(STAMPS)/package  ## system packages (where root), .venv, build and install: nothing the second time

$(STAMPS)/system: tools/install_system_packages
	@mkdir -p $(@D)
	tools/install_system_packages $(PYTHON)
	@touch $@

$(STAMPS)/venv: $(STAMPS)/system pyproject.toml tools/requirements.py tools/install_python_packages
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip uv
	$(VENV)/bin/python tools/requirements.py '$(TORCH)' | tools/install_python_packages $(VENV)
	@touch $@

# A new Python file must be made known to the editable install; a changed one needs nothing.
$(STAMPS)/python-files: FORCE
	@mkdir -p $(@D)
	@find python benchmarks -name '*.py' -o -name '*.pyi' | sort > $@.$$$$; cmp -s $@.$$$$ $@ && rm $@.$$$$ || mv $@.$$$$ $@

$(STAMPS)/package: $(STAMPS)/venv $(STAMPS)/python-files $(NATIVE_SOURCES)
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(VENV)/bin/python -m pip install --quiet --no-build-isolation --no-deps \
	  --config-settings=build-dir=build/native/$(VENV) --editable .
	@touch $@

wheel: setup  ## for this Python, this torch and this platform: build/wheels. Others: VENV=.venv-3.12 PYTHON=python3.12 TORCH=oldest
	rm -rf build/wheel/$(VENV) && python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheel/$(VENV) \
	  --config-settings=build-dir=build/native/$(VENV) .
	python tools/finish_wheel.py build/wheel/$(VENV)/*.whl build/wheels

wheels:  ## for each of PYTHONS="3.11 3.12 3.13" and the oldest and the newest torch: build/wheels
	@for python in $(PYTHONS); do for torch in oldest newest; do \
	  $(MAKE) wheel VENV=.venv-$$python-$$torch PYTHON=python$$python TORCH=$$torch || exit 1; \
	done; done

demo: setup  ## train a GPT over two simulated nodes joined by a slow link, plain and compressed (5 to 15 minutes)
	isthmus bench training $(DEMO_ARGS)

check: CTEST_ARGS = --exclude-regex '^mpi\.'
check: setup lint test-cpp test-quick  ## after each edit: formats, lint, types, and the tests that start no processes

test: setup lint test-cpp test-python  ## format and lint checks, GoogleTest, pytest; T=quant: tests of that codec alone

build-cpp: setup  ## the C++ of one of CMakePresets.json: PRESET=release
	cmake --preset $(PRESET) > build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	cmake --build --preset $(PRESET) -j $(JOBS)

test-cpp: build-cpp  ## the core's tests; PRESET=asan or tsan for sanitizers
	ctest --preset $(PRESET) -j $(JOBS) $(if $(T),-L '$(T)' --no-tests=ignore) $(CTEST_ARGS)

test-large: setup  ## tensors of more than 2^31 bytes, one after the other: up to 14 GiB of memory
	cmake --preset release > build/configure-release.log
	cmake --build --preset release -j $(JOBS) --target test_large
	ctest --test-dir build/release -L large --no-tests=error --output-on-failure

test-mpi: setup  ## MPI tiers under mpiexec, with each of MPIS="openmpi mpich" that is installed
	@for mpi in $(MPIS); do \
	  if ! command -v mpicxx.$$mpi > /dev/null; then echo "SKIPPED: $$mpi is not installed"; [ -z "$$GATE_STAGE" ] && continue; exit 1; fi; \
	  cmake --preset release -B build/$$mpi -DISTHMUS_MPI=$$mpi > build/configure-$$mpi.log || { cat build/configure-$$mpi.log; exit 1; }; \
	  cmake --build build/$$mpi -j $(JOBS) --target mpi_tests && ctest --test-dir build/$$mpi -L mpi --no-tests=error --output-on-failure || exit 1; \
	done

# No Python test by that name (pytest's 5) is well where there are C++ tests.
NONE_IS_WELL = $(if $(T),|| { [ $$? -eq 5 ] && ctest --preset $(PRESET) -N -L '$(T)' | grep -q '^Total Tests: [1-9]'; })

# In the order of folders: pytest-xdist would leave files of few tests to the end, and these are the longest.
test-python: setup  ## the backend's tests: processes over Gloo, then simulated nodes
	pytest tests/python -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=10 $(if $(T),-k '$(T)') $(NONE_IS_WELL)

test-quick: setup  ## those of them that start no processes
	pytest tests/python -m 'not processes' $(if $(T),-k '$(T)') $(NONE_IS_WELL)

# Of nightlies' contract the one that was tested; the environment has the newest release.
TORCHFT ?= torchft-nightly==2026.10.26
test-torchft: setup  ## members that come and go, with another torchft: TORCHFT=torchft-nightly==2026.10.26
	rm -rf build/torchft && python -m uv pip install --quiet --no-deps --target build/torchft '$(TORCHFT)'
	PYTHONPATH=build/torchft pytest tests/python/torchft -n $(TEST_WORKERS) --dist loadfile

test-conformance: setup  ## every collective against Gloo's results: docs/compatibility.md
	pytest tests/conformance

test-units: setup  ## whose gradients and weights a collective moves: what is read from private parts of torch, for each version of it
	pytest -n $(TEST_WORKERS) --dist loadfile $(addprefix tests/python/model/test_,torch_private.py identity.py callers.py copies.py units.py prepare_backend.py weights.py attach.py companions.py)

test-versions:  ## once a release: those two on each of TORCHES="2.11 2.12 ...", which writes the page's tables: an hour
	@for torch in $(TORCHES); do \
	  $(MAKE) setup test-units VENV=.venv-torch-$$torch TORCH="torch==$$torch.*" && \
	  .venv-torch-$$torch/bin/python tests/conformance/matrix.py || exit 1; \
	done

test-examples: setup  ## examples in frameworks of others (Ray, Lightning, ...), which it installs into the environment
	python tools/requirements.py '$(TORCH)' examples | tools/install_python_packages $(VENV)
	pytest tests/python/docs/test_examples.py

lint: setup  ## formats, linters, types and links to lines; changes nothing
	@clang-format --dry-run --Werror $(CXX_FILES)
	ruff format --check $(PYTHON_FILES)
	ruff check $(PYTHON_FILES)
	mypy
	python tools/link_lines.py --check docs/architecture.md

format: setup  ## format everything
	@clang-format -i $(CXX_FILES)
	ruff format $(PYTHON_FILES)
	ruff check --fix $(PYTHON_FILES)
	python tools/link_lines.py docs/architecture.md

tidy: setup  ## clang-tidy over all C++ that the torch module is built of
	python tools/tidy.py build/native/$(VENV) $(JOBS)

sanitize:  ## C++ tests and the torch module under address, undefined-behaviour and thread sanitizers
	$(MAKE) test-sanitized PRESET=asan
	$(MAKE) test-sanitized PRESET=tsan

test-sanitized: test-cpp  ## PRESET=asan or tsan: the C++ tests, then the torch module in tests of the backend
	tools/sanitized_pytest $(PRESET) -n $(TEST_WORKERS) --dist loadfile $(SANITIZED_TESTS)

fuzz: PRESET = fuzz
fuzz: build-cpp  ## packets and machine files under libFuzzer and sanitizers, updates of weights under atheris; FUZZ_SECONDS=30 in all
	python tests/fuzz/run.py build/fuzz/tests/fuzz $(FUZZ_SECONDS)

bench: build-cpp  ## codecs beside memcpy; collectives beside Gloo
	build/release/benchmarks/bench_codecs
	isthmus bench collectives

record: setup  ## the CPU's speed as ratios, beside the recorded ones: fails where one has halved. RECORD=--write: records anew
	cmake --preset release > build/configure-release.log
	cmake --build --preset release -j $(JOBS) --target bench_codecs
	python benchmarks/record/check.py build/release/benchmarks/bench_codecs $(RECORD)

figures: setup  ## measure what documents quote, anew, and write it there: on an idle machine. FIGURES=all, or some names
	cmake --preset release > build/configure-release.log
	cmake --build --preset release -j $(JOBS) --target bench_codecs
	python tools/figures.py $(FIGURES)

gpu-programs: $(STAMPS)/venv  ## prebuilt for tests/gpu/run, to be carried to a machine with a GPU of GPU_ARCH=90: build/gpu-carry
	cmake -S . -B build/gpu-programs/$(VENV) -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(CURDIR)/$(VENV)/bin/python \
	  -DISTHMUS_BUILD_CUDA=ON -DISTHMUS_MPI=OFF -DCMAKE_CUDA_ARCHITECTURES=$(GPU_ARCH) > build/configure-gpu-programs.log
	cmake --build build/gpu-programs/$(VENV) -j $(JOBS)
	PYTHONPATH=tests python -m gpu.pack build/gpu-programs/$(VENV) build/gpu-carry

clean:  ## everything that was built; not .venv
	rm -rf build bench-out
