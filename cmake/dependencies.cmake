# Each dependency is what the system has, else a pinned archive. Consumers need Eigen only.
# CMAKE_DISABLE_FIND_PACKAGE_<package> and FETCHCONTENT_SOURCE_DIR_<NAME> steer it as usual.
include(FetchContent)

# Makes `target` available: from find_package(package), else from the archive at `url`. With
# HEADERS <directory in the archive> it is unpacked and not configured, and its headers are system
# headers.
function(kvevict_require package target url sha256)
  cmake_parse_arguments(PARSE_ARGV 4 arg "" "HEADERS" "")
  if(TARGET ${target})
    return()
  endif()
  find_package(${package} QUIET)
  if(${package}_FOUND)
    set(${package}_FOUND TRUE PARENT_SCOPE)
    set(${package}_VERSION ${${package}_VERSION} PARENT_SCOPE)
    return()
  endif()

  message(STATUS "kvevict: ${package} is not installed, fetching ${url}")
  string(TOLOWER ${package} name)
  set(arguments URL ${url} URL_HASH SHA256=${sha256})
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.24)
    list(APPEND arguments DOWNLOAD_EXTRACT_TIMESTAMP ON)
  endif()
  if(DEFINED arg_HEADERS)
    list(APPEND arguments SOURCE_SUBDIR none)  # does not exist, so nothing is configured
  endif()
  FetchContent_Declare(${name} ${arguments})
  FetchContent_MakeAvailable(${name})
  if(DEFINED arg_HEADERS)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE ${${name}_SOURCE_DIR}/${arg_HEADERS})
  endif()
endfunction()

# Asked without a version and checked here: Eigen's own version file refuses ranges.
macro(kvevict_require_eigen)
  kvevict_require(
    Eigen3 Eigen3::Eigen https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz
    8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72 HEADERS .)
  if(DEFINED Eigen3_VERSION AND Eigen3_VERSION VERSION_LESS 3.4.0)
    message(FATAL_ERROR "kvevict needs Eigen 3.4.0 or newer, found ${Eigen3_VERSION}")
  endif()
  # A project that adds this directory links Eigen from a scope of its own.
  get_target_property(eigen_is_imported Eigen3::Eigen IMPORTED)
  if(eigen_is_imported)
    set_target_properties(Eigen3::Eigen PROPERTIES IMPORTED_GLOBAL ON)
  endif()
endmacro()

macro(kvevict_require_googletest)
  set(INSTALL_GTEST OFF)
  kvevict_require(
    GTest GTest::gtest_main
    https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
    8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
endmacro()

macro(kvevict_require_benchmark)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  kvevict_require(
    benchmark benchmark::benchmark_main
    https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
    6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)
endmacro()

macro(kvevict_require_cli11)
  kvevict_require(
    CLI11 CLI11::CLI11 https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.1.tar.gz
    73b7ec52261ce8fe980a29df6b4ceb66243bb0b779451dbd3d014cfec9fdbb58 HEADERS include)
endmacro()

macro(kvevict_require_json)
  kvevict_require(
    nlohmann_json nlohmann_json::nlohmann_json
    https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
    d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d HEADERS include)
endmacro()
