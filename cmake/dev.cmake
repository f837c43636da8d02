# For the project's own targets only: warnings, and the machine's instruction set where speed is
# wanted. Nothing here reaches a consumer.
option(KVEVICT_NATIVE "-O3 -march=native for examples, their tests and benchmarks"
       ${PROJECT_IS_TOP_LEVEL})

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
  message(FATAL_ERROR "kvevict needs g++ 11 or newer, this is ${CMAKE_CXX_COMPILER_VERSION}")
endif()

set(CMAKE_CXX_EXTENSIONS OFF)  # for the targets below this directory

add_library(kvevict_dev INTERFACE)
target_link_libraries(kvevict_dev INTERFACE kvevict::kvevict)
if(MSVC)
  target_compile_options(kvevict_dev INTERFACE /W4 /permissive- /Zc:__cplusplus /Zc:preprocessor)
else()
  target_compile_options(
    kvevict_dev INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast
                          -Wnon-virtual-dtor -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarm from inside std::string (GCC bug 105329, mended in 13).
    target_compile_options(kvevict_dev INTERFACE -Wno-restrict)
  endif()
endif()

# The kernels of these programs are compiled once, which halves the time of many units; tests of
# kernels and of what users do have them in every unit.
set(kernels ${PROJECT_BINARY_DIR}/kernels.cpp)
file(CONFIGURE OUTPUT ${kernels} CONTENT
     "#define KVEVICT_DEFINE_KERNELS\n#include \"kvevict/kernels/kernels.hpp\"\n")
add_library(kvevict_kernels STATIC EXCLUDE_FROM_ALL ${kernels})
target_link_libraries(kvevict_kernels PUBLIC kvevict_dev)
target_compile_definitions(kvevict_kernels PUBLIC KVEVICT_SHARED_KERNELS=1)
if(NOT MSVC AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_options(kvevict_kernels PRIVATE -O3)
endif()

# The machine's instruction set, for all that passes Eigen's types around: their alignment goes by it.
add_library(kvevict_native INTERFACE)
target_link_libraries(kvevict_native INTERFACE kvevict_kernels)
add_library(kvevict_fast INTERFACE)
target_link_libraries(kvevict_fast INTERFACE kvevict_native)
if(KVEVICT_NATIVE AND NOT MSVC AND NOT CMAKE_CROSSCOMPILING)
  target_compile_options(kvevict_native INTERFACE -march=native)
  target_compile_options(kvevict_fast INTERFACE -O3)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms from inside the compiler's own AVX-512 intrinsics, which Eigen then uses (GCC
    # bug 105593, mended in 13).
    target_compile_options(kvevict_native INTERFACE -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
endif()

# The example engine; examples, its tests and the golden driver use it. All policies by name are
# compiled once, and apart: a test looks at what they refer to.
find_package(Threads REQUIRED)
set(engine ${PROJECT_SOURCE_DIR}/examples/engine)
add_library(kvevict_all_policies OBJECT EXCLUDE_FROM_ALL ${engine}/policies.cpp)
target_include_directories(kvevict_all_policies PRIVATE ${PROJECT_SOURCE_DIR}/examples)
target_link_libraries(kvevict_all_policies PRIVATE kvevict_native)
if(NOT MSVC AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  # Minutes less than with -O3, which the kernels do not need.
  target_compile_options(kvevict_all_policies PRIVATE -O2)
endif()
file(GLOB engine_sources CONFIGURE_DEPENDS ${engine}/*.cpp)
list(REMOVE_ITEM engine_sources ${engine}/policies.cpp)
add_library(kvevict_engine STATIC EXCLUDE_FROM_ALL ${engine_sources}
                                                   $<TARGET_OBJECTS:kvevict_all_policies>)
target_include_directories(kvevict_engine PUBLIC ${PROJECT_SOURCE_DIR}/examples)
target_link_libraries(kvevict_engine PUBLIC kvevict_native Threads::Threads PRIVATE kvevict_fast)
