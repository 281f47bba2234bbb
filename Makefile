# make demo: train, judge and report on an embedded synthetic market.   make test: the whole test suite.
# Both set up .venv first. On a machine without a GPU, `make demo TORCH_CPU=1` fetches PyTorch's smaller CPU build.

VENV := .venv
READY := $(VENV)/.ready
PYTEST_ARGS ?= -n 2 --dist worksteal
PIP_ARGS ?= $(if $(TORCH_CPU),--extra-index-url https://download.pytorch.org/whl/cpu)

.PHONY: demo test clean

demo: $(READY)
	$(VENV)/bin/rltrain demo

test: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(PYTEST_ARGS)

# The stamp is written last, so that an installation that was broken off starts anew.
$(READY): pyproject.toml constraints.txt
	@set -e; \
	if ! $(VENV)/bin/python -c 'import pip' 2>/dev/null; then \
	    for python in $(PYTHON) python3.12 python3.11 python3 python; do \
	        if $$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then \
	            found=$$python; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "error: no Python 3.11 or 3.12 with venv found; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	        exit 2; \
	    fi; \
	    echo "making $(VENV) with $$found"; \
	    rm -rf $(VENV); \
	    $$found -m venv $(VENV); \
	fi
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[test]"
	@touch $@

clean:
	rm -rf $(VENV)
