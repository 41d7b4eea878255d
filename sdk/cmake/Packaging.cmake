# `cmake --install` links this machine's LibTorch as lib/libtorch, where the programs look for it.
#
# cpack makes a .tar.gz that runs from any folder, on any system whose glibc is as new, and a package for this release of
# Debian. Neither contains LibTorch, which takes gigabytes. A program that finds no LibTorch prints where a link to it
# belongs. `./vernier wheel` makes a wheel, which finds the LibTorch that pip installs.
install(CODE "
  set(link \"\${CMAKE_INSTALL_PREFIX}/lib/libtorch\")
  if(\"\$ENV{DESTDIR}\" STREQUAL \"\" AND NOT \"\${CMAKE_INSTALL_PREFIX}\" STREQUAL \"${LIBTORCH_ROOT}\"
      AND (IS_SYMLINK \"\${link}\" OR NOT EXISTS \"\${link}\"))
    file(CREATE_LINK \"${LIBTORCH_ROOT}\" \"\${link}\" SYMBOLIC)
  endif()")
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME vernier)
set(CPACK_PACKAGE_VENDOR "The maintainers of Vernier")
set(CPACK_PACKAGE_CONTACT "The maintainers of Vernier <maintainers@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION "The runner `vernier`, its plugins, and the SDK for plugins and own training loops.
LibTorch ${LIBTORCH_VERSION} is not in this package: link its folder as /usr/lib/libtorch. Pip's folder torch is one:
ln -s $(python3 -c 'import torch; print(torch.__path__[0])') /usr/lib/libtorch")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
# The names say for which system they are.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor ${LIBTORCH_VERSION})
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE glibc OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
string(REPLACE " " "" glibc "${glibc}")
set(CPACK_PACKAGE_FILE_NAME vernier-${PROJECT_VERSION}-libtorch${minor}-linux-${CMAKE_SYSTEM_PROCESSOR}-${glibc})
cmake_host_system_information(RESULT distribution QUERY DISTRIB_INFO)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1~${distribution_ID}${distribution_VERSION_ID})
# BeforePacking.cmake changes what is packed: no link to LibTorch, and in the .tar.gz the libraries that it needs.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/sdk/cmake/BeforePacking.cmake)
set(CPACK_VERNIER_BUNDLE ${PROJECT_SOURCE_DIR}/packaging/bundle.sh)
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
