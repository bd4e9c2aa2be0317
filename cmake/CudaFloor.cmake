# Refuses an nvcc that is too old. Sources use cudaGetDriverEntryPointByVersion, which came with
# CUDA 12.5; test/native/cuda-floor.test.ts has the list of functions.
set(DS_CUDA_FLOOR 12.5)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS DS_CUDA_FLOOR)
  message(FATAL_ERROR "CUDA: expected nvcc of CUDA ${DS_CUDA_FLOOR} or newer, got "
    "${CMAKE_CUDA_COMPILER_VERSION}. Put a newer nvcc on PATH, or build the CPU back end alone with "
    "-DDS_CUDA=OFF.")
endif()
