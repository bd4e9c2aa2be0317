# Sets DS_CUDA_ENABLED, says why when it is off, and enables the CUDA language.
include(CheckLanguage)

set(DS_CUDA_ENABLED OFF)
if(NOT DS_CUDA)
  message(STATUS "CUDA: off (DS_CUDA=OFF); building the CPU back end alone")
else()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Must be known before the language is enabled, or CMake picks the compiler's default.
    set(CMAKE_CUDA_ARCHITECTURES ${DS_CUDA_ARCHS})
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    include(CudaFloor)
    set(DS_CUDA_ENABLED ON)
    # Kernels are most of the package: packed for size, which older compilers cannot.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-compress-mode=size>)
    endif()
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION} for ${DS_CUDA_ARCHS}")
  else()
    message(STATUS "CUDA: no nvcc found; building the CPU back end alone "
      "(put nvcc of CUDA 12.5 or newer on PATH to get libds_cuda.so)")
  endif()
endif()
