#!/usr/bin/env bash
# Builds every probe, or those named: build.sh OUT_DIR [NAME...]
set -euo pipefail

out=${1:?usage: build.sh OUT_DIR [NAME...]}
shift
here=$(cd "$(dirname "$0")" && pwd)
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[[ -x $nvcc ]] || { echo "build.sh: no nvcc in PATH or /usr/local/cuda/bin; set NVCC" >&2; exit 1; }

mkdir -p "$out"
names=("$@")
if ((${#names[@]} == 0)); then
  for source in "$here"/*.cu; do names+=("$(basename "$source" .cu)"); done
fi
for name in "${names[@]}"; do
  "$nvcc" -O3 -std=c++20 -Xcompiler -Wall,-Wextra -gencode arch=compute_90,code=sm_90 -cudart static \
    -o "$out/$name" "$here/$name.cu"
  echo "$out/$name"
done
