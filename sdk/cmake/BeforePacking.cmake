# Called by cpack for the files of a package: leaves out the link to the builder's LibTorch, and adds to the .tar.gz the
# libraries that it needs besides LibTorch and glibc. A .deb names packages for them.
file(GLOB links ${CPACK_TEMPORARY_DIRECTORY}/lib/libtorch ${CPACK_TEMPORARY_DIRECTORY}/usr/lib/libtorch)
foreach(link IN LISTS links)
  file(REMOVE ${link})
endforeach()
if(CPACK_GENERATOR STREQUAL TGZ)
  execute_process(COMMAND sh ${CPACK_VERNIER_BUNDLE} ${CPACK_TEMPORARY_DIRECTORY} COMMAND_ERROR_IS_FATAL ANY)
endif()
