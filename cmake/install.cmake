# make install: the library, its headers, the program, what find_package and pkg-config read, the licence and the
# documents. Users need nothing but the headers and the library.
include(CMakePackageConfigHelpers)

set_target_properties(sluice PROPERTIES INSTALL_RPATH "")
install(TARGETS sluice EXPORT sluiceTargets LIBRARY DESTINATION lib)
install(DIRECTORY include/sluice DESTINATION include FILES_MATCHING PATTERN "*.h")
if(TARGET sluice_program)
  set_target_properties(sluice_program PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  install(TARGETS sluice_program RUNTIME DESTINATION bin)
endif()

install(FILES LICENSE README.md CONTRIBUTING.md DESTINATION share/doc/sluice)
install(DIRECTORY docs DESTINATION share/doc/sluice FILES_MATCHING PATTERN "*.md")
install(DIRECTORY examples DESTINATION share/doc/sluice)

set(package_dir lib/cmake/sluice)
install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${package_dir})
configure_package_config_file(cmake/sluiceConfig.cmake.in ${CMAKE_BINARY_DIR}/sluiceConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sluiceConfig.cmake ${CMAKE_BINARY_DIR}/sluiceConfigVersion.cmake
  DESTINATION ${package_dir})
configure_file(cmake/sluice.pc.in ${CMAKE_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/sluice.pc DESTINATION lib/pkgconfig)
