# cmake -P cmake/check_version.cmake: the header's version is the newest one of the change log and
# the one that the README tells people to fetch.
cmake_minimum_required(VERSION 3.23)
set(root ${CMAKE_CURRENT_LIST_DIR}/..)

include(${CMAKE_CURRENT_LIST_DIR}/version.cmake)

file(STRINGS ${root}/.github/CHANGELOG.md headings REGEX "^## [0-9]")
list(GET headings 0 newest)
if(NOT newest MATCHES "^## ${kvevict_version}($| )")
  message(FATAL_ERROR "version.hpp says ${kvevict_version}, CHANGELOG.md starts with '${newest}'")
endif()

file(STRINGS ${root}/README.md mentions REGEX "GIT_TAG v?[0-9]|kvevict [0-9]+\\.[0-9]+\\.[0-9]+")
foreach(line IN LISTS mentions)
  string(FIND "${line}" "${kvevict_version}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "version.hpp says ${kvevict_version}, README.md: ${line}")
  endif()
endforeach()
