# cpack makes a .tar.gz that runs from any folder, and a Debian package. Both have what `cmake --install` installs.
#
# LibTorch is in neither of them: it has gigabytes. The program looks for it in lib/libtorch of its own installation,
# which may be a link, then where it was built with. So a package of another machine needs, in the folder it is in:
#
#   ln -s /path/to/libtorch lib/libtorch
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME vernier)
set(CPACK_PACKAGE_VENDOR "The maintainers of Vernier")
set(CPACK_PACKAGE_CONTACT "The maintainers of Vernier <maintainers@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION "The runner `vernier`, its plugins, and the SDK for plugins and own training loops.
LibTorch ${LIBTORCH_VERSION} is not in this package: link its folder as /usr/lib/libtorch.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME vernier-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# The packages of the libraries that are linked have other names in each release of Debian, and dpkg-shlibdeps knows
# them. Of LibTorch, which is in no package, it says nothing.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${LIBTORCH_ROOT}/lib ${PROJECT_BINARY_DIR})

# Nobody but the owner writes to an installed plugin, whatever the umask: the program would refuse it.
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION share/doc/vernier)
# README and messages name pages and configurations by these paths.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/configs DESTINATION share/doc/vernier
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.toml")
include(CPack)
