# Everything is installed into .venv from constraints.txt, by hash. pip's own configuration on
# this machine stays in force: it is how a package index is reached.

PY := .venv/bin/python
STAMP := .venv/.installed
INSTALL := $(PY) -m pip install --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test check image proof bench docker constraints clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP) ## install, then run the demonstration
	@.venv/bin/isograd demo

test: $(STAMP) docker ## run the tests, on a throwaway Docker daemon if none answers
	@$(PY) -m pytest

check: $(STAMP) ## ruff, its formatter, and mypy
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

image: $(STAMP) ## build the image of the container lanes
	@.venv/bin/isograd image build

proof: $(STAMP) ## the long proofs: soak, fuzzing, parity on whole benchmarks
	@$(PY) -m pytest tests/proof --proof -s

bench: $(STAMP) ## what a candidate costs, beside the tools of today; see benchmarks/
	@$(INSTALL) -r benchmarks/requirements.txt
	@$(PY) benchmarks/throughput.py --lanes 1
	@$(PY) benchmarks/throughput.py --lanes 2 --tools
	@$(PY) benchmarks/latency.py
	@$(PY) benchmarks/packages.py
	@$(PY) benchmarks/growth.py
	@$(PY) benchmarks/memory.py

# Kept in one recipe: a half-made environment never gets the stamp, and is made anew.
$(STAMP): pyproject.toml constraints.txt
	@set -e; rm -rf .venv; \
	for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	    if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	        2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "isograd needs Python 3.11 or newer with venv and ensurepip; name it: make PYTHON=..." >&2; \
	    exit 1; \
	fi; \
	echo "making .venv from $$($$found --version)"; \
	$$found -m venv .venv
	@$(INSTALL) --require-hashes -r constraints.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

docker: ## have what the container tests need, on a Debian-like machine as root
	@bash .ci/docker

# hatchling and editables build the project itself, so they are pinned with the rest.
constraints: $(STAMP) ## pin the newest dependencies again (needs uv)
	@printf 'hatchling>=1.25\neditables\n' | PATH="$$PATH:.venv/bin" uv pip compile --quiet \
	    --universal --python-version 3.11 --generate-hashes --all-extras --upgrade \
	    --no-emit-index-url --no-header --no-annotate pyproject.toml - -o constraints.txt

clean: ## remove what make made
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build dist
