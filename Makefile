# The two commands that a newcomer needs, and those that developers use. Everything repeats without doing work twice.
#
#   make demo       set up, build, train a small GPT on two ranks, sample from it
#   make test       set up, build, run every test
#
#   TRIREME_PIP_ARGS   extra arguments for pip, for people who want another build of torch
#   TRIREME_PARTS      a folder with include/ and lib/ for parts that this machine's packages lack

PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)
CONFIGURE := $(if $(TRIREME_PARTS),-DTRIREME_PARTS=$(TRIREME_PARTS))

.PHONY: all demo test setup setup-test build build-all docs reference bench soak pipelines models sanitize format clean

all: build

setup:
	@tools/setup.sh

setup-test:
	@tools/setup.sh --test

$(BUILD)/build.ninja: build/python CMakeLists.txt CMakePresets.json cmake/TriremeParts.cmake cmake/TriremeRooms.cmake
	@mkdir -p $(BUILD)
	cmake --preset $(PRESET) $(CONFIGURE) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@grep -E '^-- Trireme: ' $(BUILD)/configure.log | sed 's/^-- //' || true

build/python: | setup

build: setup
	@$(MAKE) --no-print-directory $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS) --target trireme trireme_library

build-all: setup-test
	@$(MAKE) --no-print-directory $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

demo: build
	@tools/demo.sh $(BUILD)/bin/trireme

test: build-all
	ctest --test-dir $(BUILD) --output-on-failure --timeout 900

# By hand: minutes to hours.
bench: build
	$(BUILD)/bin/trireme bench train

soak: build-all
	tests/e2e/soak.py --program $(BUILD)/bin/trireme

# Every combination of schedule, stages, replicas, cuts, microbatches and model; a thousand steps with delays everywhere.
pipelines: build-all
	$(BUILD)/tests/test_train --gtest_also_run_disabled_tests --gtest_filter='PipelineByHand.*:*SchedulesByHand.*'

# Ten steps of every image model on one, two and three ranks, and cut into three stages.
models: build-all
	$(BUILD)/tests/test_train --gtest_also_run_disabled_tests --gtest_filter='*ImageLawByHand*'

sanitize: setup-test
	@for preset in asan tsan; do \
	  $(MAKE) --no-print-directory PRESET=$$preset build-all && ctest --test-dir build/$$preset -L unit --output-on-failure || exit 1; \
	done

docs: build
	$(BUILD)/bin/trireme train --help-config-markdown >docs/configuration.md

# The API reference of the library, from its headers.
reference: setup-test
	doxygen docs/Doxyfile
	@echo build/reference/html/index.html

# The formatter of PyPI at one version, so that everybody's output is the same.
format:
	@[ -x .venv/bin/clang-format ] || .venv/bin/python -m pip install -q --disable-pip-version-check clang-format==23.1.3
	.venv/bin/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu')

clean:
	rm -rf build/release build/debug build/asan build/tsan
