# cmake -D COMPILER=<c++> -D SOURCE=<file> -D INCLUDE_DIRECTORIES=<list> -P check_pair.cmake
cmake_minimum_required(VERSION 3.23)

list(TRANSFORM INCLUDE_DIRECTORIES PREPEND -I)
set(command ${COMPILER} -std=c++20 -fsyntax-only ${INCLUDE_DIRECTORIES} ${SOURCE})

execute_process(COMMAND ${command} RESULT_VARIABLE result ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} must compile as it stands:\n${output}")
endif()

execute_process(COMMAND ${command} -DKVEVICT_MUST_NOT_COMPILE RESULT_VARIABLE result
                ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles with KVEVICT_MUST_NOT_COMPILE")
endif()
file(STRINGS ${SOURCE} expected REGEX "^// expected: ")
string(REPLACE "// expected: " "" expected "${expected}")
if(expected STREQUAL "" OR NOT output MATCHES "${expected}")
  message(FATAL_ERROR "${SOURCE}: the error does not match '${expected}':\n${output}")
endif()
