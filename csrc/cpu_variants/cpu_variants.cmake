# Builds a wheel for all x86-64 processors with AVX2, or for all of ARM64: one engine for each variant, of which
# pyllama_spec/engine/cpu_variants.py loads one. Each is a whole module. In one module with several variants, the linker
# would keep a single copy of each inline function, which might use instructions that a processor lacks.
#
# The first variant is _engine itself, whose CPU backend CMakeLists.txt has configured for the oldest processors.
if (CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    set(FIRST_VARIANT neon)
    set(CPU_VARIANTS dotprod i8mm)
    set(FLAGS_dotprod -march=armv8.2-a+dotprod+fp16)
    set(FLAGS_i8mm -march=armv8.6-a+dotprod+fp16+i8mm+bf16)
else()
    set(FIRST_VARIANT avx2)
    set(CPU_VARIANTS avx512 avx512bf16)
    set(FLAGS_avx512 -mavx512f -mavx512cd -mavx512vl -mavx512dq -mavx512bw -mavx512vnni)
    set(FLAGS_avx512bf16 ${FLAGS_avx512} -mavx512bf16)
endif()
# A backend of GPUs is the most of a module: there is one. On Windows the others were never tried.
if (GGML_CUDA OR GGML_VULKAN OR WIN32)
    set(CPU_VARIANTS)
endif()

# AVX-VNNI, of Intel's processors without AVX-512, pays in one file, whose functions are its own.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mavxvnni PYLLAMA_SPEC_HAS_AVXVNNI)
if (PYLLAMA_SPEC_HAS_AVXVNNI)
    set_source_files_properties("${SPEC_DIR}/kernels/repacked_vnni.cpp" DIRECTORY . TARGET_DIRECTORY ggml-cpu
        PROPERTIES COMPILE_OPTIONS -mavxvnni)
endif()

get_target_property(CPU_SOURCES ggml-cpu SOURCES)
set(VARIANT_SOURCES)
foreach (SOURCE ${CPU_SOURCES})
    get_filename_component(SOURCE "${SOURCE}" ABSOLUTE BASE_DIR "${ENGINE_DIR}/ggml/src")
    list(APPEND VARIANT_SOURCES "${SOURCE}")
endforeach()

set_target_properties(_engine PROPERTIES OUTPUT_NAME _engine_${FIRST_VARIANT})
foreach (VARIANT ${CPU_VARIANTS})
    add_library(ggml-cpu-${VARIANT} OBJECT EXCLUDE_FROM_ALL ${VARIANT_SOURCES})
    target_compile_features(ggml-cpu-${VARIANT} PRIVATE c_std_11 cxx_std_17)
    target_include_directories(ggml-cpu-${VARIANT} PRIVATE $<TARGET_PROPERTY:ggml-cpu,INCLUDE_DIRECTORIES>)
    target_compile_definitions(ggml-cpu-${VARIANT} PRIVATE $<TARGET_PROPERTY:ggml-cpu,COMPILE_DEFINITIONS>)
    target_compile_options(ggml-cpu-${VARIANT} PRIVATE $<TARGET_PROPERTY:ggml-cpu,COMPILE_OPTIONS> ${FLAGS_${VARIANT}})

    # Everything else is as in _engine. Its objects come first, so that they resolve all symbols and the first variant's
    # backend is not linked.
    Python_add_library(_engine_${VARIANT} MODULE USE_SABI 3.10 WITH_SOABI
        $<TARGET_OBJECTS:_engine> $<TARGET_OBJECTS:ggml-cpu-${VARIANT}>)
    set_target_properties(_engine_${VARIANT} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(_engine_${VARIANT} PRIVATE $<TARGET_PROPERTY:_engine,LINK_LIBRARIES>)
    target_link_options(_engine_${VARIANT} PRIVATE $<TARGET_PROPERTY:_engine,LINK_OPTIONS>)
    add_dependencies(engine _engine_${VARIANT})
    install(TARGETS _engine_${VARIANT} LIBRARY DESTINATION pyllama_spec COMPONENT pyllama_spec)
endforeach()

Python_add_library(_processor MODULE USE_SABI 3.10 WITH_SOABI "${SPEC_DIR}/cpu_variants/processor.c")
add_dependencies(engine _processor)
install(TARGETS _processor LIBRARY DESTINATION pyllama_spec COMPONENT pyllama_spec)
