# Cross-compiles for 64-bit ARM, which is how ./test checks the kernels of src/kernels/arm under qemu:
#     cmake -S . -B build/arm -DCMAKE_TOOLCHAIN_FILE=tools/aarch64.cmake
# Needs Debian's gcc-aarch64-linux-gnu and libc6-dev-arm64-cross. The libraries of the other machine lie in .cache/arm64, where
# ath_need_arm64 (tools/setup.sh) puts them; qemu-aarch64 -L .cache/arm64 runs the programs.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)

get_filename_component(ath_arm64 "${CMAKE_CURRENT_LIST_DIR}/../.cache/arm64" ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${ath_arm64} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${ath_arm64}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${ath_arm64})
foreach(folder usr/lib lib) # of the libraries that libraries need
  string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " -Wl,-rpath-link,${ath_arm64}/${folder}/aarch64-linux-gnu")
endforeach()
