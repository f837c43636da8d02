#ifndef KVEVICT_VERSION_HPP_
#define KVEVICT_VERSION_HPP_

// The only place where the version is written: CMake reads it from here.
#define KVEVICT_VERSION_MAJOR 0
#define KVEVICT_VERSION_MINOR 1
#define KVEVICT_VERSION_PATCH 0

#endif  // KVEVICT_VERSION_HPP_
