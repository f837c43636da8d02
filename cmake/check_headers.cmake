# cmake -P cmake/check_headers.cmake               compares the list in headers.cmake with the tree
# cmake -D UPDATE=ON -P cmake/check_headers.cmake  writes the list anew
cmake_minimum_required(VERSION 3.23)
set(root ${CMAKE_CURRENT_LIST_DIR}/..)
set(list_file ${CMAKE_CURRENT_LIST_DIR}/headers.cmake)

file(GLOB_RECURSE headers RELATIVE ${root} ${root}/include/*)
list(REMOVE_ITEM headers include/kvevict/policies/README.md)
list(SORT headers)
list(JOIN headers "\n    " lines)
set(wanted
    "# Every public header. A new one is added here by check_headers.cmake -D UPDATE=ON.
set(KVEVICT_HEADERS
    ${lines})
")

file(READ ${list_file} written)
if(written STREQUAL wanted)
  return()
endif()
if(UPDATE)
  file(WRITE ${list_file} "${wanted}")
  return()
endif()
include(${list_file})
set(unlisted ${headers})
list(REMOVE_ITEM unlisted ${KVEVICT_HEADERS})
set(absent ${KVEVICT_HEADERS})
list(REMOVE_ITEM absent ${headers})
message(FATAL_ERROR "cmake/headers.cmake differs from include/\n"
                    "  not listed: ${unlisted}\n  listed but absent: ${absent}\n"
                    "  cmake -D UPDATE=ON -P cmake/check_headers.cmake writes it anew")
