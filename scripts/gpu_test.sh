#!/usr/bin/env bash
# Tests and measures the CUDA engine on this machine's GPUs, out of a kit (scripts/gpu_kit.sh) or a checkout
# with one. SANITIZE=1: a smaller suite under compute-sanitizer. `gpu_test.py --help` says the rest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kit=$(dirname "$here")
[[ -x $kit/bin/conformance_tests ]] || kit=$kit/build/gpu
[[ -x $kit/bin/conformance_tests ]] || { echo "gpu-test: there is no kit in $kit: run 'make gpu-kit' first" >&2; exit 1; }
exec python3 "$here/gpu_test.py" --kit "$kit" "$@"
