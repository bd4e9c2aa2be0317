# Targets DS::openblas and DS::liburing, linked statically so that the addon needs neither
# installed.
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

# OpenBLAS holds every kernel once for each family of processors. The addon needs AVX2 anyway, so
# the families without it are taken for the oldest one that has it, and their kernels stay out: 28
# MB become 9.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  foreach(family PRESCOTT CORE2 PENRYN DUNNINGTON NEHALEM SANDYBRIDGE ATOM NANO OPTERON OPTERON_SSE3
      BARCELONA BOBCAT BULLDOZER PILEDRIVER STEAMROLLER EXCAVATOR)
    target_link_options(ds_openblas INTERFACE LINKER:--defsym=gotoblas_${family}=gotoblas_HASWELL)
  endforeach()
endif()
