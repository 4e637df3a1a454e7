# Shared flags and the one function that turns a folder under src/ into a library, its tests, fuzzers and benchmarks.

add_library(kvasir_flags INTERFACE)
target_compile_options(kvasir_flags INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wunused -ffp-contract=off
  -fno-omit-frame-pointer)
if(KVASIR_SANITIZE)
  target_compile_options(kvasir_flags INTERFACE -fsanitize=${KVASIR_SANITIZE} -fno-sanitize-recover=all)
  if(KVASIR_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A check at every use of a pointer takes 40 % of the time to compile. AddressSanitizer sees most of what it finds;
    # misaligned access is looked for only by the fuzz preset (clang, all checks; not in kernels).
    target_compile_options(kvasir_flags INTERFACE
      -fno-sanitize=null,alignment,object-size,vptr,pointer-overflow,nonnull-attribute,returns-nonnull-attribute)
  endif()
  target_link_options(kvasir_flags INTERFACE -fsanitize=${KVASIR_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 warns about code inside system headers when sanitizers are on.
    target_compile_options(kvasir_flags INTERFACE -Wno-maybe-uninitialized)
    if(KVASIR_SANITIZE MATCHES "thread")
      # Asio uses atomic_thread_fence, which ThreadSanitizer does not model.
      target_compile_options(kvasir_flags INTERFACE -Wno-tsan)
    endif()
  endif()
endif()
target_include_directories(kvasir_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)

# What kvasir-test builds of release beside the program: all benchmarks, and the tests of kvasir_optimised_test.
add_custom_target(benches)
add_custom_target(optimised_tests)

# kvasir_optimised_test(TEST TARGET): this test's results rest on what the optimiser makes of the code (sums, kernels, threads).
# The label and the target optimised_tests let kvasir-test run these in release as well.
function(kvasir_optimised_test test target)
  add_dependencies(optimised_tests ${target})
  set_tests_properties(${test} PROPERTIES LABELS optimised)
endfunction()

# kvasir_folder(NAME [OPTIMISED] [DEPS folders...] [LIBS libraries...])
#   OPTIMISED: see kvasir_optimised_test
#   src/NAME/*.cc          -> library kvasir_NAME
#   src/NAME/x_test.cc     -> all of them one program NAME_test, one ctest entry
#   src/NAME/test_x.cc     -> what these tests share; in NAME_test too
#   src/NAME/x_fuzz.cc     -> program NAME_x_fuzz (libFuzzer; clang with KVASIR_FUZZ)
#   src/NAME/x_bench.cc    -> program NAME_x_bench
function(kvasir_folder name)
  cmake_parse_arguments(F "OPTIMISED" "" "DEPS;LIBS" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.cc ${dir}/test_*.cc)
  file(GLOB fuzzers CONFIGURE_DEPENDS ${dir}/*_fuzz.cc)
  file(GLOB benches CONFIGURE_DEPENDS ${dir}/*_bench.cc)
  if(tests OR fuzzers OR benches)
    list(REMOVE_ITEM sources ${tests} ${fuzzers} ${benches})
  endif()
  set(deps ${F_DEPS})
  list(TRANSFORM deps PREPEND kvasir_)
  if(sources)
    add_library(kvasir_${name} STATIC ${sources})
    target_link_libraries(kvasir_${name} PUBLIC kvasir_flags ${deps} ${F_LIBS} Threads::Threads)
  else()
    add_library(kvasir_${name} INTERFACE)
    target_link_libraries(kvasir_${name} INTERFACE kvasir_flags ${deps} ${F_LIBS} Threads::Threads)
  endif()
  if(KVASIR_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE kvasir_${name} GTest::gtest GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT 1200)
    if(F_OPTIMISED)
      kvasir_optimised_test(${name} ${name}_test)
    endif()
  endif()
  if(KVASIR_BENCH AND benches)
    foreach(bench ${benches})
      get_filename_component(stem ${bench} NAME_WE)
      add_executable(${name}_${stem} ${bench})
      add_dependencies(benches ${name}_${stem})
      target_link_libraries(${name}_${stem} PRIVATE kvasir_${name})
    endforeach()
  endif()
  if(KVASIR_FUZZ AND fuzzers)
    foreach(fuzz ${fuzzers})
      get_filename_component(stem ${fuzz} NAME_WE)
      add_executable(${name}_${stem} ${fuzz})
      target_link_libraries(${name}_${stem} PRIVATE kvasir_${name})
      target_compile_options(${name}_${stem} PRIVATE -fsanitize=fuzzer)
      target_link_options(${name}_${stem} PRIVATE -fsanitize=fuzzer)
    endforeach()
  endif()
endfunction()

function(kvasir_isa_flags)
  file(GLOB avx2 CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*_avx2.cc)
  file(GLOB avx512 CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*_avx512.cc)
  file(GLOB amx CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*_amx.cc)
  set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mbmi2")
  set(avx512_flags "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mavx2;-mfma;-mf16c;-mbmi2")
  set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS "${avx512_flags}")
  set_source_files_properties(${amx} PROPERTIES COMPILE_OPTIONS "${avx512_flags};-mamx-tile;-mamx-int8")
endfunction()
