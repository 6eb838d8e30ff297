# Everything a person types (make help). The release tree is build/, others are build/NAME.
#   make            builds build/bin/sluice
#   make demo       builds and runs the main job (ARGS="--ranks 8")
#   make test       every test that can run here; make test-long: the same, longer
#   make asan tsan  only the tests under that sanitizer
#   make install PREFIX=/usr/local
#   make CUDA=OFF   without the CUDA engine, also where nvcc is found; remembered until CUDA=ON
#   make JOBS=1     at most so many compilers at once, with any of these; the cores of the machine when not given
#   make bench      micro benchmarks, built to build/bin
#   make gpu-kit    what a machine with a GPU needs to test Sluice, in build/gpu
#   make gpu-test   the tests and measurements of the CUDA engine, on a machine with a GPU (SANITIZE=1)
.DEFAULT_GOAL := all
.PHONY: all help demo test test-long asan tsan bench gpu-kit gpu-test install clean
.DELETE_ON_ERROR:
SHELL := /bin/bash

QUIET := $(shell [ -t 2 ] || echo --quiet)
SAY := >&2 echo sluice:
PREFIX ?= /usr/local
ARGS ?=
JOBS ?=
export JOBS
# Not from the environment, where others have their own CUDA. A tree that is configured otherwise is configured again.
ifeq ($(origin CUDA),command line)
CUDA_FLAG := -DSLUICE_CUDA=$(CUDA)
ifneq ($(shell sed -n 's/^SLUICE_CUDA:BOOL=//p' build/CMakeCache.txt 2>/dev/null),$(CUDA))
.PHONY: build/build.ninja
endif
endif
NINJA := ninja $(QUIET) $(if $(JOBS),-j $(JOBS))
# Ninja says that there was nothing to do even when it is to be quiet. A terminal gets its output as it is.
UNLESS_NOTHING := $(if $(QUIET),| { grep -v '^ninja: no work to do' || true; })

# A stamp says that the packages are there, so that a second call asks no package manager.
build/.packages-%: scripts/setup.sh
	@mkdir -p build
	@$(SAY) looking for the packages of the $*
	@scripts/setup.sh $*
	@touch $@

build/build.ninja: CMakePresets.json | build/.packages-build
	@$(SAY) configuring
	@cmake --preset release -DSLUICE_TESTS=OFF $(CUDA_FLAG) >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }

all: build/.packages-build build/build.ninja
	@[ -x build/bin/sluice ] || $(SAY) building, which takes minutes the first time
	@set -o pipefail; $(NINJA) -C build $(UNLESS_NOTHING) >&2

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

demo: all
	@build/bin/sluice demo $(ARGS)

test: build/.packages-test
	@python3 scripts/run_tests.py

test-long: build/.packages-test
	@SLUICE_LONG=1 python3 scripts/run_tests.py

asan tsan: build/.packages-test
	@python3 scripts/run_tests.py --only $@

bench: build/.packages-test
	@cmake --preset release -DSLUICE_BENCH=ON $(CUDA_FLAG) >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@set -o pipefail; $(NINJA) -C build sluice_benchmarks $(UNLESS_NOTHING)

gpu-kit: build/.packages-gpu
	@scripts/gpu_kit.sh

gpu-test: gpu-kit
	@scripts/gpu_test.sh

install: all
	@cmake --install build --prefix "$(PREFIX)"

clean:
	@rm -rf build
