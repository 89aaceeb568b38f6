# Libraries come from the distribution's packages, found by pkg-config. A missing one is named
# together with the Debian/Ubuntu package that brings it; tools/test.sh and tools/demo.sh install all.
find_package(PkgConfig)
if(NOT PKG_CONFIG_FOUND)
  message(FATAL_ERROR "pkg-config is missing: apt-get install pkg-config")
endif()
find_package(Threads REQUIRED)

function(duckd_require target module package)
  pkg_check_modules(${target} QUIET IMPORTED_TARGET GLOBAL ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "library '${module}' is missing: apt-get install ${package}  (or run tools/demo.sh, which installs everything)")
  endif()
  message(STATUS "${module} ${${target}_VERSION}")
endfunction()

duckd_require(CJSON libcjson libcjson-dev)
duckd_require(PCRE2 libpcre2-8 libpcre2-dev)
duckd_require(EDIT libedit libedit-dev)
duckd_require(CMOCKA cmocka libcmocka-dev)
duckd_require(UV libuv libuv1-dev)
duckd_require(DPDK libdpdk libdpdk-dev)

# GNU-EFI brings no pkg-config file on Debian 12; its header tells whether it is there.
find_path(GNU_EFI_INCLUDE efi/efi.h)
if(NOT GNU_EFI_INCLUDE)
  message(FATAL_ERROR "GNU-EFI is missing: apt-get install gnu-efi  (or run tools/demo.sh, which installs everything)")
endif()

# llhttp comes as C sources without a library; host/http compiles them where they are installed.
find_path(LLHTTP_INCLUDE llhttp.h PATHS /usr/share/include /usr/include PATH_SUFFIXES llhttp)
find_file(LLHTTP_MAIN llhttp/llhttp.c PATHS /usr/share /usr/local/share)
get_filename_component(LLHTTP_SOURCE "${LLHTTP_MAIN}" DIRECTORY)
if(NOT LLHTTP_INCLUDE OR NOT LLHTTP_MAIN)
  message(FATAL_ERROR "llhttp is missing: apt-get install node-llhttp  (or run tools/demo.sh, which installs everything)")
endif()
