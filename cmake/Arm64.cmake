# Toolchain file of the cross build for linux-arm64 on Debian or Ubuntu. Compiler:
# crossbuild-essential-arm64. Libraries: scripts/arm64-sysroot.
#   cmake -DCMAKE_TOOLCHAIN_FILE=cmake/Arm64.cmake -DDS_ARM64_SYSROOT=FOLDER -DDS_CUDA=OFF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Builds of CMake's own tests see this variable too.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DS_ARM64_SYSROOT)
set(CMAKE_FIND_ROOT_PATH "${DS_ARM64_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# Gloo's own libraries are found here by the linker only.
set(CMAKE_SHARED_LINKER_FLAGS_INIT
  "-Wl,-rpath-link,${DS_ARM64_SYSROOT}/usr/lib/aarch64-linux-gnu")
