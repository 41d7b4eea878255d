# Imported targets for the LibTorch in LIBTORCH_ROOT (a folder with include/ and lib/), without LibTorch's own CMake
# package: that one demands a CUDA toolkit for a CUDA build of LibTorch even where nothing of ours needs CUDA.
#
#   libtorch::torch_cpu   tensors, autograd, nn, all CPU kernels
#   libtorch::c10         the core below it

set(LIBTORCH_ROOT "$ENV{LIBTORCH}" CACHE PATH "Folder of LibTorch: has include/ and lib/")
if(NOT EXISTS "${LIBTORCH_ROOT}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch is not in LIBTORCH_ROOT='${LIBTORCH_ROOT}' (no lib/libtorch_cpu.so there). "
    "Set it to an unpacked LibTorch or to the folder of a Python torch package, or call ./vernier, which gets one.")
endif()

set(LIBTORCH_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS "${LIBTORCH_ROOT}/include/torch/headeronly/version.h" line REGEX "#define TORCH_VERSION_${part} ")
  string(REGEX MATCH "[0-9]+" number "${line}")
  string(APPEND LIBTORCH_VERSION ".${number}")
endforeach()
string(SUBSTRING "${LIBTORCH_VERSION}" 1 -1 LIBTORCH_VERSION)
# The range is that of .github/workflows/nightly.yml; ./vernier gets 2.11.0.
if(LIBTORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LIBTORCH_ROOT='${LIBTORCH_ROOT}' holds LibTorch ${LIBTORCH_VERSION}; Vernier needs 2.11 or newer")
elseif(LIBTORCH_VERSION VERSION_GREATER_EQUAL 2.16)
  message(WARNING "LibTorch ${LIBTORCH_VERSION} is newer than any that Vernier was tested with (2.15)")
endif()

if(NOT TARGET libtorch::torch_cpu)
  foreach(library c10 torch_cpu)
    add_library(libtorch::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(libtorch::${library} PROPERTIES
      IMPORTED_LOCATION "${LIBTORCH_ROOT}/lib/lib${library}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${LIBTORCH_ROOT}/include;${LIBTORCH_ROOT}/include/torch/csrc/api/include")
  endforeach()
  target_link_libraries(libtorch::torch_cpu INTERFACE libtorch::c10)
endif()
