# One set of compiler options for everything that runs on the host.
# -ffp-contract=off: the order and rounding of every fp32 operation is a contract (fp9/fp9.h);
# a compiler may not fuse what the source does not fuse.
add_compile_definitions(_GNU_SOURCE)
add_compile_options(-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                    -Wundef -fno-strict-aliasing -ffp-contract=off)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-format-truncation) # messages may be cut; clang knows no such warning
endif()
if(DUCKD_WERROR)
  add_compile_options(-Werror)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1")

if(DUCKD_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(DUCKD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(DUCKD_SANITIZE)
  message(FATAL_ERROR "DUCKD_SANITIZE is '${DUCKD_SANITIZE}'; it can be empty, address or thread")
endif()

if(DUCKD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link) # coverage of the libraries guides the fuzz targets
endif()

# The path of every file inside the project: all includes read #include "fp9/fp9.h".
include_directories(${CMAKE_SOURCE_DIR})
