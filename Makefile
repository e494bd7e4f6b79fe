# Every target sets up what it needs by itself, in a virtual environment inside this folder.
#   make serve     a real small model behind the OpenAI API on http://127.0.0.1:8000
#   make test      the whole test suite         make check   linters, types, import rules
#   make goldens   golden logits (needs torch)  make peers   llama.cpp, OpenVINO to measure against
#   make interop   compressed checkpoints, read by other libraries (needs torch)
#   make templates what the vendors' chat templates render, and ours beside it
#   make tokenizers  real tokenizers against the ids of reference libraries (downloads about 500 MB)
#   make clean     remove everything that was built or installed here

PYTHON ?= python3
MODEL ?= smollm2
ARGS ?=
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc -type f 2>/dev/null)
PACKAGE := $(shell find src -name '*.py' -o -name '*.yaml' 2>/dev/null)
PIP_FLAGS := -q --disable-pip-version-check

.PHONY: serve test check format goldens interop templates peers tokenizers clean

serve: .venv-serve/ready
	@exec .venv-serve/bin/trimaran serve $(MODEL) $(ARGS)

test: .venv/ready
	@.venv/bin/python -m pytest $(ARGS)

check: .venv/ready
	@PATH="$(CURDIR)/.venv/bin:$$PATH" scripts/check.sh

format: .venv/ready
	@.venv/bin/ruff check --fix-only -q . && .venv/bin/ruff format -q . && find csrc -name '*.h' -o -name '*.cpp' | xargs .venv/bin/clang-format -i

goldens:
	@PYTHON="$(PYTHON)" scripts/goldens.sh

interop:
	@PYTHON="$(PYTHON)" scripts/interop.sh

templates:
	@PYTHON="$(PYTHON)" scripts/goldens_templates.sh

tokenizers: .venv/ready
	@.venv/bin/python -m scripts.tokenizers $(ARGS)

peers:
	@PYTHON="$(PYTHON)" scripts/peers.sh

clean:
	rm -rf .venv .venv-serve .venv-goldens .venv-interop .venv-templates .venv-tokenizers .tokenizers .peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench scripts -name __pycache__ -prune -exec rm -rf {} +

# The user's environment: the package and its dependencies, nothing for tests, no torch.
.venv-serve/ready: $(SOURCES) $(PACKAGE)
	@PYTHON="$(PYTHON)" scripts/need.sh
	@echo "Installing Trimaran into .venv-serve (compiles its CPU executor; a few minutes the first time) ..." >&2
	@test -x .venv-serve/bin/python || $(PYTHON) -m venv .venv-serve
	@.venv-serve/bin/pip install $(PIP_FLAGS) -U pip
	@.venv-serve/bin/pip install $(PIP_FLAGS) .
	@touch $@

# The developer's environment: editable, with the tools of `make test` and `make check`.
.venv/ready: $(SOURCES)
	@PYTHON="$(PYTHON)" scripts/need.sh
	@echo "Setting up .venv with the test and check tools ..." >&2
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@.venv/bin/pip install $(PIP_FLAGS) -U pip
	@.venv/bin/pip install $(PIP_FLAGS) --group test --group check -e .
	@touch $@
