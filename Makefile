# edp_lab: `make course` and `make test` need only make and Python 3.11 to 3.13. For commands without make, see docs/install.md.
#   make PYTHON=python3.12 ...   use another Python;   make VENV=/some/folder ...   use another folder for the environment
#   make TORCH_INDEX=https://pypi.org/simple ...   package index for torch (default: see INSTALL_TORCH)
#   make test PYTEST_ARGS="-k runner"   arguments for pytest;   make course COURSE_ARGS="00_start --mode full"
#   make lab LAB_ARGS="--no-browser --allow-root"   options for JupyterLab

SHELL := /bin/sh
VENV ?= .venv
TORCH_INDEX ?=
PYTEST_ARGS ?=
COURSE_ARGS ?=
LAB_ARGS ?=
SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUITABLE)' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTED := $(VENV)/.tested
# pip compiles no modules; Python compiles each when it is first imported: what most commands use, during installation.
PIP_INSTALL := $(BIN)/python -m pip install --no-compile -c constraints.txt
# On Linux, torch from PyPI includes about 3 GB of CUDA. Without an NVIDIA driver, we first try PyTorch's CPU index, once.
NVIDIA := $(shell command -v nvidia-smi || ls -d /proc/driver/nvidia /dev/dxg 2>/dev/null)
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_FROM := $(BIN)/python -m pip install --no-compile --no-deps -c constraints.txt torch --index-url
ifneq ($(TORCH_INDEX),)
INSTALL_TORCH := $(TORCH_FROM) $(TORCH_INDEX)
else ifeq ($(shell uname -s)$(NVIDIA),Linux)
INSTALL_TORCH := timeout 8 $(BIN)/python -m pip index versions torch --retries 0 --index-url $(CPU_INDEX) >/dev/null 2>&1 \
	&& $(TORCH_FROM) $(CPU_INDEX) --retries 0 || echo 'torch is not available from $(CPU_INDEX): installing it from PyPI, with CUDA'
endif
unexport PYTHONDONTWRITEBYTECODE  # some containers set it; then every process recompiles its imports

.DEFAULT_GOAL := help
.PHONY: help install course test lab lint clean

help:  ## list all targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST)

install: $(TESTED)  ## create the environment with pinned packages; other targets do this when needed

course: $(INSTALLED)  ## execute every notebook in quick mode; write pages and an index to runs/course/
	@$(BIN)/edp-lab course run $(COURSE_ARGS)

test: $(TESTED)  ## run all tests, three files in parallel (some wait for a browser)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lab: $(INSTALLED)  ## open JupyterLab on your own copy of the notebooks, in edp-lab-course/
	@$(BIN)/edp-lab course lab $(LAB_ARGS)

lint: $(TESTED)  ## check style, types and wording
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_words.py tests/test_docs.py

clean:  ## remove the environment and the caches; keep results in runs/
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find edp_lab tests -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): WHAT := .
$(TESTED): WHAT := .[test]
$(INSTALLED) $(TESTED): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c '$(SUITABLE)' || { \
		echo "error: edp_lab needs Python 3.11, 3.12 or 3.13: install one, or set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(INSTALL_TORCH)
	$(PIP_INSTALL) -e '$(WHAT)'
	$(BIN)/python -c 'import edp_lab.compiled, edp_lab.course.run, edp_lab.course.nb00_start.panels'
	@touch $(INSTALLED) $@
	@echo 'installed; to use the edp-lab command in this shell:  . $(VENV)/bin/activate'
