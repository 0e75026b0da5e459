# A room is one folder under trireme/ and one static library of all .cpp files in it and in its folders, linked only to
# rooms listed before it.
#
#   trireme_room(comm ROOMS device base LIBRARIES MPI::MPI_CXX [TORCH] [WITHOUT mpi_transport.cpp])
#   trireme_test(comm ROOMS comm [TORCH] [PARTS bound_test.cpp ZSTD])
#   trireme_mpi_test(transport RANKS 2 3 4 ROOMS comm [ARGUMENTS automatic])
#
# TORCH gives the room LibTorch and the shared precompiled header. WITHOUT names the files whose part is missing on
# this machine, or the stubs (no_mpi.cpp) that are not needed because it is there. PARTS pairs a test's file with each
# part that it needs (TRIREME_HAVE_<part>); what is left out is listed in the property TRIREME_TESTS_LEFT_OUT.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime" ${CCACHE})
endif()

add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers;-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow>")
# -Wno-restrict: g++ 12 sees overlaps in std::string that are not there (GCC bug 105651);
# -Wno-array-bounds, -Wno-stringop-overflow: g++ 13 sees fmt write past its four bytes of fill, which it does not
target_include_directories(trireme_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(TRIREME_SANITIZE)
  target_compile_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # With sanitizers g++ 12 sees more that is not there, std::string's small buffer above all: shown, but no errors.
  target_compile_options(trireme_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-error>")
  target_link_options(trireme_flags INTERFACE -fsanitize=${TRIREME_SANITIZE} -rdynamic)
  target_compile_definitions(trireme_flags INTERFACE TRIREME_SANITIZED)
  # LibTorch, Open MPI and libgomp are not instrumented: what is theirs is ignored, by name where it has one.
  set(suppressions ${PROJECT_SOURCE_DIR}/tests/sanitizers)
  set(TRIREME_SANITIZER_ENVIRONMENT
      "TSAN_OPTIONS=ignore_noninstrumented_modules=1 halt_on_error=1 second_deadlock_stack=1 suppressions=${suppressions}/thread.supp"
      "LSAN_OPTIONS=suppressions=${suppressions}/leak.supp print_suppressions=0"
      "UBSAN_OPTIONS=print_stacktrace=1")
endif()
# One fmt and one nlohmann-json for every file, whatever torch's include path carries.
target_include_directories(trireme_flags SYSTEM BEFORE INTERFACE ${PROJECT_BINARY_DIR}/first)
target_compile_definitions(trireme_flags INTERFACE FMT_HEADER_ONLY)
target_link_libraries(trireme_flags INTERFACE Threads::Threads)

if(TRIREME_TORCH)
  add_library(trireme_torch INTERFACE)
  target_link_libraries(trireme_torch INTERFACE trireme_flags ${TORCH_LIBRARIES})
  separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(trireme_torch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${torch_flags}>")
  file(WRITE ${PROJECT_BINARY_DIR}/pch.cpp "")
  add_library(trireme_pch OBJECT ${PROJECT_BINARY_DIR}/pch.cpp)
  target_link_libraries(trireme_pch PRIVATE trireme_torch)
  target_precompile_headers(trireme_pch PRIVATE <ATen/ATen.h> <ATen/Parallel.h> <c10/core/GradMode.h> <fmt/format.h> <nlohmann/json.hpp>)
endif()

function(trireme_use_torch target)
  target_link_libraries(${target} PUBLIC trireme_torch)
  target_precompile_headers(${target} REUSE_FROM trireme_pch)
endfunction()

function(trireme_room room)
  cmake_parse_arguments(ROOM "TORCH" "" "ROOMS;LIBRARIES;WITHOUT" ${ARGN})
  file(GLOB ROOM_SOURCES CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${room}/*.cpp ${room}/*/*.cpp)
  foreach(file ${ROOM_WITHOUT})
    list(REMOVE_ITEM ROOM_SOURCES ${room}/${file})
  endforeach()
  add_library(trireme_${room} STATIC ${ROOM_SOURCES})
  target_link_libraries(trireme_${room} PUBLIC trireme_flags)
  if(ROOM_TORCH)
    trireme_use_torch(trireme_${room})
  endif()
  foreach(lower ${ROOM_ROOMS})
    if(NOT TARGET trireme_${lower})
      message(FATAL_ERROR "room ${room} may only use rooms listed before it, not ${lower}")
    endif()
    target_link_libraries(trireme_${room} PUBLIC trireme_${lower})
  endforeach()
  target_link_libraries(trireme_${room} PUBLIC ${ROOM_LIBRARIES})
endfunction()

# What to install for a part that a test needs.
set(TRIREME_PACKAGE_PROTOZERO libprotozero-dev)
set(TRIREME_PACKAGE_ZSTD libzstd-dev)
set(TRIREME_PACKAGE_CLP coinor-libclp-dev)
set(TRIREME_PACKAGE_RAPIDCHECK librapidcheck-dev)

# tests/<room>/*_test.cpp make one program test_<room>; registered as unit.<room>.
function(trireme_test room)
  cmake_parse_arguments(TEST "TORCH" "" "ROOMS;PARTS" ${ARGN})
  set(target test_${room})
  file(GLOB TEST_SOURCES CONFIGURE_DEPENDS ${room}/*_test.cpp)
  set(left_out)
  while(TEST_PARTS)
    list(POP_FRONT TEST_PARTS file part)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/${file})
      message(FATAL_ERROR "tests/${room}/${file}, which needs ${part}, is not there")
    endif()
    if(NOT TRIREME_HAVE_${part})
      list(APPEND left_out ${file})
      list(APPEND packages_${file} ${TRIREME_PACKAGE_${part}})
    endif()
  endwhile()
  list(REMOVE_DUPLICATES left_out)
  foreach(file ${left_out})
    list(REMOVE_ITEM TEST_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${room}/${file})
    list(JOIN packages_${file} " " packages)
    set_property(GLOBAL APPEND PROPERTY TRIREME_TESTS_LEFT_OUT "${room}/${file} (install ${packages})")
  endforeach()
  if(NOT TEST_SOURCES)
    return()
  endif()
  add_executable(${target} ${TEST_SOURCES})
  if(TEST_TORCH)
    trireme_use_torch(${target})
  endif()
  foreach(used ${TEST_ROOMS})
    target_link_libraries(${target} PRIVATE trireme_${used})
  endforeach()
  target_link_libraries(${target} PRIVATE trireme_flags GTest::gmock GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE TRIREME_SOURCE="${PROJECT_SOURCE_DIR}")
  add_test(NAME unit.${room} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(unit.${room} PROPERTIES LABELS unit TIMEOUT 600 ENVIRONMENT "${TRIREME_SANITIZER_ENVIRONMENT}")
endfunction()

# tests/mpi/<name>_test.cpp makes one program, run under mpirun with each number of RANKS as mpi.<name>.<ranks>, or
# mpi.<name>.<arguments>.<ranks>. It says which rank expected what, and ends with a status other than 0.
function(trireme_mpi_test name)
  if(NOT MPI_CXX_FOUND)
    return()
  endif()
  cmake_parse_arguments(TEST "" "" "RANKS;ROOMS;ARGUMENTS" ${ARGN})
  set(target test_mpi_${name})
  if(NOT TARGET ${target})
    add_executable(${target} mpi/${name}_test.cpp)
    trireme_use_torch(${target})
    foreach(used ${TEST_ROOMS})
      target_link_libraries(${target} PRIVATE trireme_${used})
    endforeach()
  endif()
  foreach(ranks ${TEST_RANKS})
    string(JOIN "." test mpi ${name} ${TEST_ARGUMENTS} ${ranks})
    add_test(NAME ${test} WORKING_DIRECTORY ${PROJECT_BINARY_DIR}
             COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none -np ${ranks} $<TARGET_FILE:${target}> ${TEST_ARGUMENTS})
    set_tests_properties(${test} PROPERTIES LABELS mpi TIMEOUT 300 PROCESSORS 2
      ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMP_NUM_THREADS=1;${TRIREME_SANITIZER_ENVIRONMENT}")
  endforeach()
endfunction()
