#!/bin/sh
# sh bench/run.sh [--quick | --kvpress] [--jobs N] [--help] [GOOGLE BENCHMARK OPTION]...
#
# Builds the benchmarks in build/ (Release), runs them and prints one table: what, its time, the
# time of the naive form, their ratio, and the part of the ceiling that is reached (multiply-add
# peak, read or copy bandwidth, measured in the same run). Behind it, how times grow with the cache:
# the exponent and its bound. The same in build/bench/report.json.
#
#   --quick    under 40 seconds after the build; for a look, not for figures to quote; no growth
#   --kvpress  compares values and times with kvpress in the place of all this, if Python (PYTHON,
#              or python3) has it: pip install kvpress==0.5.5 torch
#
# Everything else goes to the benchmarks: sh bench/run.sh --benchmark_filter=ceiling
# or to the comparison: sh bench/run.sh --kvpress --rows snapkv,tova

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/cmake/setup.sh"

quick=
kvpress=
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      print_help
      exit 0
      ;;
    --quick) quick=yes ;;
    --kvpress) kvpress=yes ;;
    --jobs)
      [ $# -gt 1 ] || fail "--jobs needs a number"
      jobs=$2
      shift
      ;;
    *) break ;;
  esac
  shift
done

need_base
configure "$build" -DCMAKE_BUILD_TYPE=Release -DKVEVICT_BUILD_BENCHMARKS=ON
if [ -n "$kvpress" ]; then
  build_targets "$build" compare_kvpress
  exec "${PYTHON:-python3}" "$root/bench/compare_kvpress.py" "$@"
fi
build_targets "$build" kvevict_bench

cd "$root"
programs=
count=0
for source in bench/bench_*.cpp; do
  if [ -n "$quick" ] && [ "$source" = bench/bench_growth.cpp ]; then continue; fi
  program=build/bench/$(basename "$source" .cpp)
  programs="$programs $program"
  count=$((count + $("$program" --benchmark_list_tests | wc -l)))
done

if [ -n "$quick" ]; then
  # A benchmark takes two to three times its minimum, since the number of iterations is searched.
  min_time=$(awk "BEGIN { t = 10 / $count; print t < 0.1 ? t : 0.1 }")
  set -- "--benchmark_min_time=$min_time" "$@"
else
  # The median of interleaved repetitions.
  set -- --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true \
    --benchmark_min_time=0.1 "$@"
fi
results=
for program in $programs; do
  say "${program##*/}"
  result=$program.json
  "$program" --benchmark_out="$result" --benchmark_out_format=json "$@" >/dev/null
  results="$results $result"
done
# shellcheck disable=SC2086  # a list of words
build/bench/bench_report build/bench/report.json $results
