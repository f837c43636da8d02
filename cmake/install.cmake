# Installation and the files that find_package(kvevict) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/kvevict)

install(TARGETS kvevict EXPORT kvevictTargets FILE_SET HEADERS)
install(EXPORT kvevictTargets NAMESPACE kvevict:: DESTINATION ${package_dir})

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/kvevictConfig.cmake.in ${PROJECT_BINARY_DIR}/kvevictConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# While the major version is 0 a minor version may break sources.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/kvevictConfigVersion.cmake COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/kvevictConfig.cmake
              ${PROJECT_BINARY_DIR}/kvevictConfigVersion.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
