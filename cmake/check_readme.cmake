# cmake -P cmake/check_readme.cmake: the README's first C++ block stands, line by line, in
# examples/01_quickstart.cpp, which is compiled and run. Indentation may differ.
cmake_minimum_required(VERSION 3.23)
set(root ${CMAKE_CURRENT_LIST_DIR}/..)

file(READ ${root}/README.md readme)
file(READ ${root}/examples/01_quickstart.cpp example)
if(NOT readme MATCHES "```cpp\n")
  message(FATAL_ERROR "README.md has no C++ block")
endif()
string(FIND "${readme}" "```cpp\n" begin)
math(EXPR begin "${begin} + 7")
string(SUBSTRING "${readme}" ${begin} -1 snippet)
string(FIND "${snippet}" "```" end)
string(SUBSTRING "${snippet}" 0 ${end} snippet)

foreach(text IN ITEMS snippet example)
  string(REGEX REPLACE "\n[ \t]+" "\n" ${text} "\n${${text}}")
endforeach()
string(LENGTH "${snippet}" length)
string(FIND "${example}" "${snippet}" found)
if(length LESS 100 OR found EQUAL -1)
  message(FATAL_ERROR "README.md's first C++ block is not in examples/01_quickstart.cpp:\n"
                      "${snippet}")
endif()
