# Target DS::gloo when libgloo is installed; sets DS_GLOO_ENABLED and says why when it is off.
find_library(DS_GLOO_LIBRARY NAMES gloo NO_CACHE)
find_path(DS_GLOO_INCLUDE NAMES gloo/transport/tcp/pair.h NO_CACHE)
set(DS_GLOO_ENABLED OFF)
if(DS_GLOO_LIBRARY AND DS_GLOO_INCLUDE)
  add_library(ds_gloo_import INTERFACE)
  add_library(DS::gloo ALIAS ds_gloo_import)
  target_include_directories(ds_gloo_import SYSTEM INTERFACE ${DS_GLOO_INCLUDE})
  # Behind the system's folders: what libgloo-dev lacks, never in place of what it has.
  set(DS_GLOO_MISSING_HEADERS "-idirafter${CMAKE_CURRENT_SOURCE_DIR}/csrc/comm/gloo/include")
  target_compile_options(ds_gloo_import INTERFACE ${DS_GLOO_MISSING_HEADERS})
  target_link_libraries(ds_gloo_import INTERFACE ${DS_GLOO_LIBRARY})

  # Gloo's pairs have no stable interface: releases from 2023 on connect in another way.
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  try_compile(DS_GLOO_FITS "${CMAKE_BINARY_DIR}/gloo"
    SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/csrc/comm/gloo/patient_pair.cc"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${DS_GLOO_INCLUDE}"
    COMPILE_DEFINITIONS "${DS_GLOO_MISSING_HEADERS}"
    OUTPUT_VARIABLE DS_GLOO_ERRORS CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  if(DS_GLOO_FITS)
    set(DS_GLOO_ENABLED ON)
    message(STATUS "gloo: ${DS_GLOO_LIBRARY}")
  else()
    message(WARNING "gloo: ${DS_GLOO_LIBRARY} is not of the version this needs (Debian 12's, of "
      "2022); building without collectives on the CPU\n${DS_GLOO_ERRORS}")
  endif()
else()
  message(STATUS "gloo: not found; building without collectives on the CPU "
    "(apt-get install libgloo-dev to get libds_gloo.so)")
endif()
