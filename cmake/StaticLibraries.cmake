# Targets DS::blas and DS::file_ring: OpenBLAS and liburing, linked statically so that the addon
# needs neither installed; on macOS Accelerate and nothing.
if(APPLE)
  find_library(DS_ACCELERATE Accelerate REQUIRED)
  add_library(DS::blas INTERFACE IMPORTED)
  target_link_libraries(DS::blas INTERFACE ${DS_ACCELERATE})
  add_library(DS::file_ring INTERFACE IMPORTED)
  return()
endif()

function(ds_static_library name archive header debian_package)
  string(TOUPPER ${name} upper)
  set(hints /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread
            /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread)
  find_library(DS_${upper}_ARCHIVE NAMES ${archive} HINTS ${hints} NO_CACHE)
  find_path(DS_${upper}_INCLUDE NAMES ${header} HINTS ${hints} NO_CACHE)
  if(NOT DS_${upper}_ARCHIVE OR NOT DS_${upper}_INCLUDE)
    message(FATAL_ERROR "The static library ${archive} (with ${header}) was not found. "
      "On Debian or Ubuntu: apt-get install ${debian_package}")
  endif()
  message(STATUS "${name}: ${DS_${upper}_ARCHIVE}")
  add_library(ds_${name} INTERFACE)
  add_library(DS::${name} ALIAS ds_${name})
  target_include_directories(ds_${name} SYSTEM INTERFACE ${DS_${upper}_INCLUDE})
  target_link_libraries(ds_${name} INTERFACE ${DS_${upper}_ARCHIVE})
endfunction()

# The pthread variant: the OpenMP one would make the addon need libgomp.
ds_static_library(openblas libopenblas.a cblas.h libopenblas-pthread-dev)
ds_static_library(liburing liburing.a liburing.h liburing-dev)
add_library(DS::blas ALIAS ds_openblas)
add_library(DS::file_ring ALIAS ds_liburing)

# OpenBLAS holds every kernel once for each family of processors. The addon needs AVX2 anyway, so
# the families without it are taken for the oldest one that has it, and their kernels stay out. So
# is Zen, whose matrix products are Haswell's. More than 20 MB less, with what follows.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  foreach(family PRESCOTT CORE2 PENRYN DUNNINGTON NEHALEM SANDYBRIDGE ATOM NANO OPTERON OPTERON_SSE3
      BARCELONA BOBCAT BULLDOZER PILEDRIVER STEAMROLLER EXCAVATOR ZEN)
    target_link_options(ds_openblas INTERFACE LINKER:--defsym=gotoblas_${family}=gotoblas_HASWELL)
  endforeach()
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  # Servers have Neoverse or ThunderX. Processors of phones and old boards take the kernels that
  # every ARMv8 processor runs.
  foreach(family CORTEXA53 CORTEXA55 CORTEXA57 CORTEXA72 CORTEXA73 CORTEXX1 CORTEXX2 CORTEXA510
      CORTEXA710 FALKOR THUNDERX TSV110 EMAG8180)
    target_link_options(ds_openblas INTERFACE LINKER:--defsym=gotoblas_${family}=gotoblas_ARMV8)
  endforeach()
endif()

# Sets `out` to the names of a family's kernels, without the family: what its table asks for.
function(ds_openblas_kernels out family)
  get_target_property(archive ds_openblas INTERFACE_LINK_LIBRARIES)
  set(table "${CMAKE_BINARY_DIR}/setparam_${family}.o")
  execute_process(COMMAND ${CMAKE_AR} p "${archive}" setparam_${family}.o
    OUTPUT_FILE "${table}" ERROR_QUIET)
  execute_process(COMMAND ${CMAKE_NM} --undefined-only "${table}"
    OUTPUT_VARIABLE symbols ERROR_QUIET)
  string(REGEX MATCHALL "[A-Za-z0-9_]+_${family}\n" names "${symbols}")
  list(TRANSFORM names REPLACE "_${family}\n" "")
  set(${out} ${names} PARENT_SCOPE)
endfunction()

# Cooper Lake, as newer processors with AVX-512 count too, has products of its own for bf16 alone,
# which are not called: its table keeps its sizes of blocks and takes Skylake-X's kernels.
ds_openblas_kernels(DS_COOPERLAKE_KERNELS COOPERLAKE)
ds_openblas_kernels(DS_SKYLAKEX_KERNELS SKYLAKEX)
set(DS_SHARED_KERNELS "")
foreach(kernel ${DS_COOPERLAKE_KERNELS})
  if(kernel IN_LIST DS_SKYLAKEX_KERNELS)
    string(APPEND DS_SHARED_KERNELS "--defsym=${kernel}_COOPERLAKE=${kernel}_SKYLAKEX\n")
  endif()
endforeach()
if(DS_SHARED_KERNELS)
  file(WRITE "${CMAKE_BINARY_DIR}/openblas-kernels.txt" "${DS_SHARED_KERNELS}")
  target_link_options(ds_openblas INTERFACE "LINKER:@${CMAKE_BINARY_DIR}/openblas-kernels.txt")
endif()
