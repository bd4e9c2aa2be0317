# Language standard, warnings, sanitizers (target ds_flags) and the flags of CPU op bodies.
find_package(Threads REQUIRED)

add_library(ds_flags INTERFACE)
# The standard is a plain flag: CMake before 3.26 refuses C++20 as a property of CUDA targets.
target_compile_options(ds_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-std=c++20 -Wall -Wextra -Werror=return-type -ffp-contract=off
    -ffunction-sections -fdata-sections>
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr --extended-lambda
    -Xcompiler=-Wall,-ffp-contract=off>)

# No contraction anywhere: a fused multiply-add happens only where the source writes one, so that
# the CPU's and the GPU's optimizer steps agree bit for bit.
set(DS_CPU_OP_FLAGS -O3 -fno-math-errno)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND DS_CPU_OP_FLAGS -mavx2 -mfma -mf16c)
endif()

# Arguments of an op are a struct of a few hundred zeros at first, which GCC writes by "rep stos":
# to begin that takes longer than all of its stores.
include(CheckCXXCompilerFlag)
set(DS_CLEAR_BY_STORES -mmemset-strategy=unrolled_loop:1024:noalign,libcall:-1:noalign)
check_cxx_compiler_flag("${DS_CLEAR_BY_STORES}" DS_CAN_CLEAR_BY_STORES)
if(NOT DS_CAN_CLEAR_BY_STORES)
  set(DS_CLEAR_BY_STORES "")
endif()

if(DS_SANITIZE)
  # Code without optimization hides no access from the checks and compiles in half the time of -O1.
  # ThreadSanitizer keeps the frames of Release, by which suppressions know Gloo's objects.
  if(NOT "thread" IN_LIST DS_SANITIZE)
    set(CMAKE_CXX_FLAGS_RELEASE "-O0 -DNDEBUG")
    list(REMOVE_ITEM DS_CPU_OP_FLAGS -O3)
  endif()
  set(DS_CLEAR_BY_STORES "") # all files share a precompiled header, and so its options
  list(JOIN DS_SANITIZE "," DS_SANITIZE_LIST)
  target_compile_options(ds_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DS_SANITIZE_LIST} -fno-sanitize-recover=undefined
      -fno-omit-frame-pointer -g1 -fpch-preprocess>)
  target_link_options(ds_flags INTERFACE -fsanitize=${DS_SANITIZE_LIST})
endif()
