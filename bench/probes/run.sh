#!/usr/bin/env bash
# Runs prebuilt probes one after another, each for at most SECONDS: run.sh [-t SECONDS] FOLDER [NAME...]
# Prints what they print; fails when one of them does.
set -uo pipefail

limit=120
if [[ ${1:-} == -t ]]; then
  limit=$2
  shift 2
fi
folder=${1:?usage: run.sh [-t SECONDS] FOLDER [NAME...]}
shift
names=("$@")
((${#names[@]})) || names=(attributes pinned_read launches hop waiting_streams first_launch host_calls one_sm ring)

failed=()
for name in "${names[@]}"; do
  printf '\n== %s\n' "$name"
  begin=$SECONDS
  timeout --kill-after=5 "$limit" "$folder/$name"
  code=$?
  printf -- '-- %s: exit code %d, %d s\n' "$name" "$code" $((SECONDS - begin))
  ((code == 0)) || failed+=("$name")
done
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}"; exit 1; }
