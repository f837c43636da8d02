# Sets kvevict_version from the header, the one place where the version is written.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../include/kvevict/version.hpp kvevict_version
     REGEX "#define KVEVICT_VERSION_[A-Z]+ [0-9]+$")
list(TRANSFORM kvevict_version REPLACE "[^0-9]+" "")
list(JOIN kvevict_version "." kvevict_version)
