# Cross-compiles for 64-bit ARM and runs the result under qemu, which is how ./test checks the kernels of src/kernels/arm:
#     cmake -S . -B build/arm -DCMAKE_TOOLCHAIN_FILE=tools/aarch64.cmake
# Needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user. libcjson and cmocka of the other machine lie in
# .cache/arm64, where ath_need_arm64 (tools/setup.sh) puts them, so that the system's own package lists stay as they are.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

get_filename_component(ath_arm_root "${CMAKE_CURRENT_LIST_DIR}/../.cache/arm64" ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${ath_arm_root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${ath_arm_root}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${ath_arm_root})
