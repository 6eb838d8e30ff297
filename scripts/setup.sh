#!/usr/bin/env bash
# Installs what the build (setup.sh build), the build and the tests (setup.sh test) or these and the kit for
# GPU machines (setup.sh gpu) need and this machine does not have yet. Does nothing, and asks for no rights, when everything is there.
set -euo pipefail

what=${1:-build}
packages=(cmake ninja-build g++ pkg-config libhwy-dev libfmt-dev libcli11-dev nlohmann-json3-dev libhwloc-dev zlib1g-dev)
if [[ $what == test || $what == gpu ]]; then
  packages+=(libgtest-dev libgmock-dev libbenchmark-dev clang-14 libclang-rt-14-dev python3 git binutils util-linux)
fi
[[ $what != gpu ]] || packages+=(patchelf)

say() { printf 'setup: %s\n' "$*" >&2; }

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  say "this is no Debian, so nothing was installed; the build needs what Debian calls: ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    say "these packages are missing and this user is not root and has no sudo: ask for 'apt-get install ${missing[*]}'"
    exit 1
  fi
  as_root=(sudo)
fi

say "installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >&2; }
apt update || say "apt-get update failed; trying with the lists that are there"
apt install -y --no-install-recommends "${missing[@]}" ||
  { say "apt-get could not install ${missing[*]}; its words are above"; exit 1; }
