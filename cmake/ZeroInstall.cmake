# cmake --install: headers, static libraries and a package for find_package(zero).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The targets have the same names in this build and in the package: zero::train, zero::03_zero3, …, and
# zero::engine, which brings the chapters that it is made of. Headers keep their paths: the roots common/, engine/
# and the top of the repository become <prefix>/include/zero.
get_property(_libraries GLOBAL PROPERTY ZERO_LIBRARIES)
get_property(_chapters GLOBAL PROPERTY ZERO_CHAPTER_LIBRARIES)
set(_installed "")
set(_include "${CMAKE_INSTALL_INCLUDEDIR}/zero")
foreach(_name IN LISTS _libraries _chapters)
  list(APPEND _installed zero_${_name})
  set_target_properties(zero_${_name} PROPERTIES EXPORT_NAME ${_name})
  add_library(zero::${_name} ALIAS zero_${_name})
endforeach()
foreach(_chapter IN LISTS _chapters)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${_chapter}" DESTINATION "${_include}"
    FILES_MATCHING PATTERN "*.hpp" PATTERN "*test*" EXCLUDE PATTERN exercises EXCLUDE)
endforeach()
target_include_directories(zero_base INTERFACE "$<INSTALL_INTERFACE:${_include}>")
target_compile_features(zero_base PUBLIC cxx_std_20)

install(TARGETS ${_installed} EXPORT zeroTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
# zero::cuda is a part of its own: the package must work with a LibTorch that lies elsewhere.
if(TARGET zero_cuda)
  set_target_properties(zero_cuda PROPERTIES EXPORT_NAME cuda)
  add_library(zero::cuda ALIAS zero_cuda)
  install(TARGETS zero_cuda EXPORT zeroCudaTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT zeroCudaTargets NAMESPACE zero:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/zero")
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/common/zero" "${PROJECT_SOURCE_DIR}/engine/zero" DESTINATION "${_include}"
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*_bench.hpp" EXCLUDE)
install(EXPORT zeroTargets NAMESPACE zero:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/zero")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/zeroConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/zeroConfig.cmake"
  INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/zero")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/zeroConfig.cmake" "${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/ZeroLibTorch.cmake" DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/zero")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# LibTorch is found by its version, before anything is built with it.
zero_add_test(torch_version COMMAND "${CMAKE_COMMAND}" -DSOURCE=${PROJECT_SOURCE_DIR} -DWORK=${PROJECT_BINARY_DIR}
  -P tests/torch_version.cmake LABELS common)
# Not with sanitizers, for which all that is linked must be compiled.
if(NOT ZERO_SANITIZE)
  zero_add_test(consumer COMMAND "${ZERO_PYTHON}" tests/consumer.py "${CMAKE_COMMAND}" "${CMAKE_GENERATOR}"
    "${CMAKE_CXX_COMPILER}" "${ZERO_TORCH_DIRECTORY}" "${PROJECT_BINARY_DIR}" LABELS install)
endif()
