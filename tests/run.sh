#!/bin/sh
# sh tests/run.sh [OPTION]... [CTEST ARGUMENT]...
#
# Builds kvevict in build/ and runs all of its tests; installs by apt what is missing for that.
#
#   --sanitize   address and undefined-behaviour sanitizers and libstdc++'s debug mode
#   --clang      clang++ instead of the default compiler
#   --headers    compile every header alone, with clang++
#   --tidy       clang-tidy over every header of the library
#   --no-simd    scalar kernels only
#   --neon       cross-compile the kernels for AArch64 and run them under qemu
#   --only NAMES build and run the tests of some folders alone: --only "core policies"
#   --model      fetch SmolLM2-135M and test with it too (once there, it always takes part)
#   --jobs N     parallel jobs (default: all processors)
#   --help       this text
#
# The first six build some of the unit tests, each in a directory of its own under build/.
# Everything else goes to ctest: sh tests/run.sh -R SnapKV

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/cmake/setup.sh"

variant=
only=
wants_model=
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      print_help
      exit 0
      ;;
    --sanitize | --clang | --headers | --tidy | --no-simd | --neon) variant=${1#--} ;;
    --model) wants_model=yes ;;
    --only)
      [ $# -gt 1 ] || fail "--only needs names of folders in tests/"
      only=$2
      shift
      ;;
    --jobs)
      [ $# -gt 1 ] || fail "--jobs needs a number"
      jobs=$2
      shift
      ;;
    *) break ;;
  esac
  shift
done

directory=$build${variant:+/$variant}
need_base
options='-DKVEVICT_BUILD_EXAMPLES=OFF -DKVEVICT_BUILD_BENCHMARKS=OFF'
target=unit_tests
selection='-L unit'
# From source where the installed library does not fit.
own_googletest=-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON
case $variant in
  sanitize | neon)
    need_packages googletest
    [ ! -d /usr/src/googletest ] ||
      own_googletest="$own_googletest -DFETCHCONTENT_SOURCE_DIR_GTEST=/usr/src/googletest"
    ;;
esac
case $variant in
  '')
    options='-DCMAKE_BUILD_TYPE=Release -DKVEVICT_BUILD_BENCHMARKS=OFF'
    target=all
    selection=
    ;;
  sanitize)
    # Golden cases and the choice by name run the same code without it. The debug mode changes the
    # layout of containers.
    target='core_test views_test kernels_test scoring_test temporal_test allocation_test
      selection_test policies_test adapters_test fuzz_test engine_test'
    selection='-R ^(core|views|kernels|scoring|temporal|allocation|selection|policies|adapters|fuzz|engine)[.]'
    options="$options -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-g1 -DKVEVICT_NATIVE=OFF
      $own_googletest"
    CXXFLAGS='-fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_DEBUG'
    export CXXFLAGS
    ;;
  clang)
    have clang++ || need_packages clang
    # Every policy in one program, and what is closest to the compiler.
    options="$options -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++"
    target='no_exceptions_test kernels_test'
    selection='-R ^(multi_tu[.]NoExceptions|kernels[.])'
    ;;
  headers)
    have clang++ || need_packages clang
    options="$options -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++"
    target='kvevict_headers_alone multi_tu_test'
    selection='-R ^multi_tu[.]Link'
    ;;
  tidy)
    have clang++ || need_packages clang
    need_packages clang-tidy-14
    # shellcheck disable=SC2086  # a list of words
    configure "$directory" $options -DCMAKE_CXX_COMPILER=clang++
    say "reading every header with every policy; minutes"
    exec clang-tidy-14 -p "$directory" --quiet "$root/tests/multi_tu/all_policies.cpp"
    ;;
  no-simd)
    # What the kernels have a part in.
    options="$options -DCMAKE_BUILD_TYPE=Release -DKVEVICT_ENABLE_SIMD=OFF"
    target=kernels_test
    selection='-R ^kernels[.]'
    ;;
  neon)
    need_packages g++-aarch64-linux-gnu qemu-user-static
    options="$options -DCMAKE_BUILD_TYPE=Release $own_googletest
      -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
      -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
      -DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static"
    target=kernels_test
    selection='-R ^kernels[.]'
    ;;
esac

if [ -n "$only" ]; then
  target=
  selection=
  for folder in $only; do
    ls "$root/tests/$folder"/*_test.cpp >/dev/null 2>&1 || fail "tests/$folder has no tests"
    target="$target ${folder}_test"
    selection="$selection|$folder"
  done
  selection="-R ^(${selection#|})[.]"
fi

# shellcheck disable=SC2086  # lists of words
configure "$directory" $options
# shellcheck disable=SC2086
build_targets "$directory" $target

if [ -n "$wants_model" ]; then
  fetch_model
  [ -n "$model" ] || fail "the model could not be fetched (build/models/fetch.log says why)"
fi
if [ -z "$variant" ] && [ -e "$build/models/$model_name" ]; then
  KVEVICT_MODEL=${KVEVICT_MODEL:-$build/models/$model_name}
  export KVEVICT_MODEL
fi
# shellcheck disable=SC2086
ctest --test-dir "$directory" --output-on-failure --no-tests=error --parallel "$jobs" \
  $selection "$@"
