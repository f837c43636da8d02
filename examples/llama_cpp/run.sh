#!/bin/sh
# sh examples/llama_cpp/run.sh [--help] [MODE] [OPTION]...
#
# Runs SmolLM2-135M-Instruct in llama.cpp, flash attention on, with kvevict evicting through its
# public API. Without a mode: the three tables, in half an hour or so.
#
#   recall   what the model still finds in a cache that was cut
#   bench    how long a decode step takes, with and without, and what kvevict takes of it
#   endless  what becomes of text without end in a small cache
#   layers   which layers know where a fact lies, for --layers
#   chat     a conversation without end; /stats, /pin NAME, /cells N, /quit
#   check    whether the adapter sees the very operands of attention
#   equality whether holes change what the model says; writes a copy of it in f32 (540 MB)
#   short    whether all of it works, in two minutes; fails where it does not
#   fetch    nothing but fetch llama.cpp
#
# Installs by apt what is missing, fetches the model (93 MB) and llama.cpp (77 MB, the sdist of
# llama-cpp-python) from PyPI, and builds llama.cpp once in build/llama.cpp (minutes).
#
# Options go to the program, for instance --threads 2, recall --trials 4; those of one mode, and
# --json FILE, with that mode alone. All of them:
#   build/examples/llama_cpp/kvevict_llama_cpp recall --help
#
# In the environment: LLAMA_CPP_PREFIX, where a llama.cpp is installed already, or
# LLAMA_CPP_SOURCE, a directory with its sources. Others than that of the sdist may have other
# names for what the adapter reads; it says so then.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
. "$root/cmake/setup.sh"

sdist=llama-cpp-python==0.3.36
sdist_name=llama_cpp_python-0.3.36.tar.gz
sdist_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
work=$build/llama.cpp
prefix=${LLAMA_CPP_PREFIX:-$work/installed}

modes='recall bench endless'
case ${1:-} in
  --help | -h)
    print_help
    exit 0
    ;;
  recall | bench | endless | layers | chat | check | equality | short | fetch)
    modes=$1
    shift
    ;;
esac

# Leaves the sdist in $work. pip compiles nothing for it.
fetch_llama() {
  [ ! -e "$work/$sdist_name" ] || return 0
  python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
  say "fetching llama.cpp (77 MB) into build/llama.cpp/"
  python3 -m pip download -q --no-deps --no-binary llama-cpp-python -d "$work/fetch" "$sdist" &&
    printf '%s  %s\n' "$sdist_sha256" "$work/fetch/$sdist_name" | sha256sum -c - >/dev/null &&
    mv "$work/fetch/$sdist_name" "$work/"
}

# Static, so that the example is one file. Without OpenMP: the example attaches a thread pool.
build_llama() {
  [ ! -e "$prefix/lib/cmake/llama/llama-config.cmake" ] || return 0
  mkdir -p "$work/source"
  source=${LLAMA_CPP_SOURCE:-$work/source/vendor/llama.cpp}
  if [ -z "${LLAMA_CPP_SOURCE:-}" ]; then
    fetch_llama || fail "llama.cpp could not be fetched"
    tar xzf "$work/$sdist_name" -C "$work/source" --strip-components=1
  fi
  say "building llama.cpp in build/llama.cpp/ (minutes, once)"
  # A directory that was configured keeps its generator; of a failed attempt nothing is kept.
  generator=
  if [ ! -e "$work/build/build.ninja" ] && [ ! -e "$work/build/Makefile" ]; then
    rm -rf "$work/build"
    if have ninja; then generator='-G Ninja'; fi
  fi
  {
    # shellcheck disable=SC2086  # two words or none
    cmake $generator -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF \
      -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DGGML_CCACHE=OFF -DLLAMA_OPENSSL=OFF \
      -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
      -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF &&
      nice cmake --build "$work/build" --parallel "$jobs" --target llama &&
      cmake --install "$work/build"
  } >"$work/build.log" 2>&1 || {
    tail -n 20 "$work/build.log" >&2
    fail "llama.cpp could not be built (build/llama.cpp/build.log)"
  }
}

if [ "$modes" = fetch ]; then
  fetch_llama || fail "llama.cpp could not be fetched"
  exit 0
fi
need_base
build_llama
configure "$build" -DCMAKE_BUILD_TYPE=Release -DKVEVICT_LLAMA_CPP="$prefix"
build_targets "$build" kvevict_llama_cpp
fetch_model
[ -n "$model" ] || fail "the model could not be fetched (build/models/fetch.log)"
for mode in $modes; do
  "$build/examples/llama_cpp/kvevict_llama_cpp" "$mode" --model "$model" \
    --text "$root/README.md" "$@"
done
