# cmake -D CASE=... -D PROGRAM=... -D MODEL=... -D WORK=... -P cli_test.cmake
# Runs one case; what does not hold is an error, and so is a CASE that is not here.
cmake_minimum_required(VERSION 3.23)
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

# run(ARGUMENT...): sets status, out, err.
macro(run)
  execute_process(
    COMMAND ${PROGRAM} ${ARGN}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE out
    ERROR_VARIABLE err)
endmacro()

# run_well(COMMAND ARGUMENT...): with the built-in model and a JSON file, which becomes `json`.
macro(run_well command)
  run(${command} --model ${MODEL} --json ${WORK}/result.json ${ARGN})
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${command} ended with ${status}: ${err}")
  endif()
  file(READ ${WORK}/result.json json)
endmacro()

# check(CONDITION...): as in if().
macro(check)
  if(NOT (${ARGN}))
    message(SEND_ERROR "not so: ${ARGN}\nstdout: ${out}\nstderr: ${err}")
  endif()
endmacro()

# K and V of the built-in model: 4 layers, 2 KV heads of 32 channels, floats and a position.
math(EXPR bytes_per_token "4 * 2 * (2 * 32 * 4 + 4)")

if(CASE STREQUAL "Generate")
  run_well(generate --prompt " ? bell" --max-new-tokens 20)
  check(out MATCHES "[a-z]")
  check(err MATCHES "FullKV: [0-9]+ tokens read, 20 written")
  string(JSON new_tokens GET ${json} new_tokens)
  string(JSON prompt_tokens GET ${json} prompt_tokens)
  string(JSON bytes GET ${json} kv_bytes_end)
  check(new_tokens EQUAL 20)
  math(EXPR least "(${prompt_tokens} + 20) * ${bytes_per_token}")
  check(bytes GREATER_EQUAL least)

elseif(CASE STREQUAL "GenerateStopsAtTheContext")
  # Nothing is evicted, so what is asked to go on without end has to stop.
  run_well(generate --prompt " bell" --max-new-tokens 0 --ignore-eos)
  check(err MATCHES "context of 1152 tokens is full")
  string(JSON new_tokens GET ${json} new_tokens)
  check(new_tokens GREATER 1100)
  check(new_tokens LESS_EQUAL 1152)

elseif(CASE STREQUAL "GenerateWithoutEndIsBounded")
  # A third more than the trained context; memory is that of the budget, in the peak too.
  run_well(generate --prompt " bell" --policy streaming_llm --budget 64 --max-new-tokens 1500
           --ignore-eos)
  string(JSON new_tokens GET ${json} new_tokens)
  string(JSON end_bytes GET ${json} kv_bytes_end)
  string(JSON peak_bytes GET ${json} kv_bytes_peak)
  check(new_tokens EQUAL 1500)
  check(err MATCHES "longest lane 64,")
  math(EXPR least "64 * ${bytes_per_token}")
  math(EXPR most "80 * ${bytes_per_token}")
  check(end_bytes GREATER_EQUAL least)
  check(end_bytes LESS most)
  check(peak_bytes LESS most)

elseif(CASE STREQUAL "Perplexity")
  string(REPEAT "The bell rings at noon. " 20 text)
  file(WRITE ${WORK}/text.txt "${text}")
  run_well(perplexity ${WORK}/text.txt --max-tokens 100 --prompt-len 16 --policy h2o --budget 32)
  check(out MATCHES "H2O: NLL [0-9.]+, perplexity [0-9.]+ over 83 tokens")
  string(JSON tokens GET ${json} tokens)
  check(tokens EQUAL 83)
  string(JSON evicted GET ${json} entries_evicted)
  math(EXPR expected "(99 - 32) * 4 * 2")
  check(evicted EQUAL expected)

elseif(CASE STREQUAL "Recall")
  run_well(recall --lengths 200,400 --trials 2)
  check(out MATCHES "prompt tokens +recall\n")
  string(JSON num_cells LENGTH ${json} cells)
  check(num_cells EQUAL 2)
  foreach(cell IN ITEMS 0 1)
    string(JSON asked GET ${json} cells ${cell} num_questions)
    string(JSON right GET ${json} cells ${cell} num_right)
    check(asked EQUAL 16)
    check(right GREATER_EQUAL 12)
  endforeach()

elseif(CASE STREQUAL "Compare")
  run_well(compare --prompt-len 1000 --trials 2 --budgets 10%,25% --policies
           "FullKV,StreamingLLM,SnapKV,snapkv + caote")
  string(REPLACE "\n" ";" lines "${out}")
  foreach(line IN LISTS lines)
    string(LENGTH "${line}" length)
    check(length LESS_EQUAL 100)
  endforeach()
  check(out MATCHES "policy +budget +recall +random +error ")
  check(out MATCHES "policy +budget +NLL +random ")
  string(JSON num_rows LENGTH ${json} recall)
  check(num_rows EQUAL 9)
  math(EXPR last "${num_rows} - 1")
  foreach(row RANGE ${last})
    foreach(field IN ITEMS policy budget budget_tokens num_right num_questions trials kv_bytes_peak
                           kv_bytes_end prefill_seconds decode_tokens_per_second entries_evicted)
      string(JSON ${field} ERROR_VARIABLE missing GET ${json} recall ${row} ${field})
      check(missing STREQUAL NOTFOUND)
    endforeach()
    check(trials EQUAL 2)
    check(num_questions EQUAL 16)
    # Entries are those of one trial: at most all of its 1000 tokens and what it decoded.
    math(EXPR most "1100 * 4 * 2")
    check(entries_evicted LESS most)
    # A control of its own has what is protected: SnapKV's window and what is decoded, no sinks.
    string(JSON random ERROR_VARIABLE none GET ${json} recall ${row} random)
    if(policy MATCHES "[sS]nap")
      string(JSON recent_window GET ${random} recent_window)
      string(JSON after_prompt GET ${random} after_prompt)
      string(JSON control_questions GET ${random} num_questions)
      string(JSON control_right GET ${random} num_right)
      string(JSON control_error GET ${random} output_error)
      string(JSON output_error GET ${json} recall ${row} output_error)
      check(recent_window EQUAL 32)
      check(after_prompt)
      check(control_questions EQUAL 16)
      check(control_right LESS num_right)
      check(control_error GREATER output_error)
    else()
      check(none MATCHES "not found")
    endif()
    if(policy STREQUAL "FullKV")
      check(entries_evicted EQUAL 0)
      check(num_right GREATER_EQUAL 15)
      set(full_bytes ${kv_bytes_end})
    else()
      check(entries_evicted GREATER 0)
      check(kv_bytes_end LESS full_bytes)
    endif()
  endforeach()
  # The built-in model's text is answers, which the full cache knows. SnapKV does not cut there.
  string(JSON num_rows LENGTH ${json} decode)
  check(num_rows EQUAL 5)
  string(JSON full_nll GET ${json} decode 0 nll)
  string(JSON random_nll GET ${json} decode 1 nll)
  check(full_nll LESS 0.5)
  check(random_nll GREATER 1)
  run(compare --model ${MODEL} --policies Nobody)
  check(NOT status EQUAL 0)
  check(err MATCHES "no policy 'Nobody'. known: FullKV")

elseif(CASE STREQUAL "ErrorsAreOneLine")
  # fails(MESSAGE COMMAND ARGUMENT...): the program says just that and ends with an error.
  macro(fails message)
    run(${ARGN})
    check(NOT status EQUAL 0)
    string(LENGTH "${out}" out_length)
    check(out_length EQUAL 0)
    check(err MATCHES "kvevict_lm: ${message}")
    string(REGEX MATCHALL "\n" line_ends "${err}")
    list(LENGTH line_ends num_lines)
    check(num_lines EQUAL 1)
  endmacro()
  set(generate generate --model ${MODEL} --prompt " bell")
  fails("${WORK}/none.gguf: cannot be opened" generate --model ${WORK}/none.gguf --prompt x)
  fails("${WORK}/none.txt: cannot be read" perplexity ${WORK}/none.txt --model ${MODEL})
  fails("budget '0': expected tokens" ${generate} --policy snapkv --budget 0)
  fails("budget '0%': expected tokens" ${generate} --policy snapkv --budget 0%)
  fails("SnapKV: budget = 16 must be at least 32" ${generate} --policy snapkv --budget 16 --options
        observation_window=32)
  fails("make_policy: no policy 'klingon'. known: FullKV, .*StreamingLLM, .*SnapKV" ${generate}
        --policy klingon)
  fails("SnapKV: no option 'budgt'. valid: budget, observation_window" ${generate} --policy snapkv
        --options budgt=3)
  string(REPEAT "The bell rings at noon. " 400 text)
  file(WRITE ${WORK}/long.txt "${text}")
  fails("the text has [0-9]+ tokens, the model's context only 1152" perplexity ${WORK}/long.txt
        --model ${MODEL} --max-tokens 100000)
  fails("--prompt has [0-9]+ tokens, the model's context only 1152" generate --model ${MODEL}
        --prompt "${text}")
  fails("--prompt-len has 2000 tokens, the model's context only 1152" compare --model ${MODEL}
        --prompt-len 2000)

else()
  message(FATAL_ERROR "no case ${CASE}")
endif()
