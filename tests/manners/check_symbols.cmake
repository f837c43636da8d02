# cmake -D NM=<nm> -D OBJECT=<file> -P check_symbols.cmake
cmake_minimum_required(VERSION 3.23)

execute_process(COMMAND ${NM} --undefined-only ${OBJECT} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[ \t]*U[ \t]+" "" symbols "${symbols}")
string(REPLACE "\n" ";" symbols "${symbols}")
list(FILTER symbols EXCLUDE REGEX "^$")
if(NOT "_Znwm" IN_LIST symbols)
  message(FATAL_ERROR "No operator new among the symbols of ${OBJECT}: is it the right file?")
endif()
# std::cout, cerr, clog and their kin; C output (vsnprintf, which formats into memory, is not);
# what ends the program; threads; the environment.
list(FILTER symbols INCLUDE REGEX
     "^(_ZSt4(cout|cerr|clog)|_ZNSt8ios_base4Init.*|_?_?(v?f?printf|fprintf|vfprintf|f?puts|f?putc|putchar|fwrite|write)(_chk)?|perror|abort|_?exit|quick_exit|__assert_fail|_ZNSt6thread.*|(secure_)?getenv)$")
if(symbols)
  message(FATAL_ERROR "The library refers to: ${symbols}")
endif()
