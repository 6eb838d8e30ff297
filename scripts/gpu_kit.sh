#!/usr/bin/env bash
# Collects in build/gpu all that a machine with a GPU, a driver and Python needs to test and measure Sluice:
# programs, libraries, headers, scripts, probes and recorded router decisions. It may be copied anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=build
kit=build/gpu
limit_mib=40
quiet=$([ -t 2 ] || echo --quiet)

# Of these every machine has its own, and they must match its loader and its driver.
system_libraries='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libutil|libresolv|libcuda|libnvidia.*)\.so'

configure_log=$tree/configure.log
mkdir -p "$tree"
cmake --preset release -DSLUICE_TESTS=ON -DSLUICE_CUDA=ON >"$configure_log" 2>&1 || { cat "$configure_log"; exit 1; }
ninja -C "$tree" $quiet ${JOBS:+-j $JOBS} all sluice_tests

rm -rf "$kit"
mkdir -p "$kit/bin" "$kit/scripts"
cmake --install "$tree" --prefix "$kit" --strip >/dev/null
strip -o "$kit/bin/conformance_tests" "$tree/bin/conformance_tests"
cp scripts/gpu_test.sh scripts/gpu_test.py scripts/test_report.py "$kit/scripts/"

if [[ -x bench/probes/build.sh ]]; then
  mkdir -p "$kit/probes"
  bench/probes/build.sh "$kit/probes"
fi
if [[ -n ${SLUICE_TRACES:-} ]]; then
  mkdir -p "$kit/data"
  cp "$SLUICE_TRACES"/*.csv.gz "$kit/data/"
fi

# Libraries of libraries, too; the program's own is there already.
for object in "$kit"/bin/* "$kit"/lib/*.so; do
  LD_LIBRARY_PATH=$kit/lib ldd "$object" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | sort -u | while read -r library; do
  name=$(basename "$library")
  [[ $name =~ $system_libraries || -e $kit/lib/$name ]] || cp -L "$library" "$kit/lib/$name"
done
find "$kit/lib" -maxdepth 1 -name '*.so*' -type f -exec patchelf --set-rpath '$ORIGIN' {} +
find "$kit/bin" -type f -exec patchelf --set-rpath '$ORIGIN/../lib' {} +

kib=$(du -sk "$kit" | cut -f1)
echo "gpu-kit: $kit, $((kib / 1024)) MiB"
if ((kib > limit_mib * 1024)); then
  echo "gpu-kit: that is more than $limit_mib MiB; the largest files:" >&2
  find "$kit" -type f -printf '%s %p\n' | sort -rn | head >&2
  exit 1
fi
