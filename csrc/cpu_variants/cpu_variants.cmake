# A wheel for all processors with AVX2: the engine once for each level, of which pyllama_spec/engine/levels.py loads one.
# Each is a whole module. Of code for several levels in one module the linker keeps one copy of every inline function,
# and that may be the one with the instructions that a processor lacks.
#
# _engine itself, whose CPU backend CMakeLists.txt has configured for AVX2, is the first of them.
set(LEVELS avx512 avx512bf16)
set(FLAGS_avx512 -mavx512f -mavx512cd -mavx512vl -mavx512dq -mavx512bw -mavx512vnni)
set(FLAGS_avx512bf16 ${FLAGS_avx512} -mavx512bf16)

get_target_property(CPU_SOURCES ggml-cpu SOURCES)
set(LEVEL_SOURCES)
foreach (SOURCE ${CPU_SOURCES})
    get_filename_component(SOURCE "${SOURCE}" ABSOLUTE BASE_DIR "${ENGINE_DIR}/ggml/src")
    list(APPEND LEVEL_SOURCES "${SOURCE}")
endforeach()

set_target_properties(_engine PROPERTIES OUTPUT_NAME _engine_avx2)
foreach (LEVEL ${LEVELS})
    add_library(ggml-cpu-${LEVEL} OBJECT EXCLUDE_FROM_ALL ${LEVEL_SOURCES})
    target_compile_features(ggml-cpu-${LEVEL} PRIVATE c_std_11 cxx_std_17)
    target_include_directories(ggml-cpu-${LEVEL} PRIVATE $<TARGET_PROPERTY:ggml-cpu,INCLUDE_DIRECTORIES>)
    target_compile_definitions(ggml-cpu-${LEVEL} PRIVATE $<TARGET_PROPERTY:ggml-cpu,COMPILE_DEFINITIONS>)
    target_compile_options(ggml-cpu-${LEVEL} PRIVATE $<TARGET_PROPERTY:ggml-cpu,COMPILE_OPTIONS> ${FLAGS_${LEVEL}})

    # All else as in _engine. Its objects come first, so that nothing of the backend for AVX2 is missed, and taken.
    Python_add_library(_engine_${LEVEL} MODULE USE_SABI 3.10 WITH_SOABI
        $<TARGET_OBJECTS:_engine> $<TARGET_OBJECTS:ggml-cpu-${LEVEL}>)
    set_target_properties(_engine_${LEVEL} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(_engine_${LEVEL} PRIVATE $<TARGET_PROPERTY:_engine,LINK_LIBRARIES>)
    target_link_options(_engine_${LEVEL} PRIVATE $<TARGET_PROPERTY:_engine,LINK_OPTIONS>)
    if (GGML_CUDA)
        pyllama_spec_link_cuda(_engine_${LEVEL})
    endif()
    add_dependencies(engine _engine_${LEVEL})
    install(TARGETS _engine_${LEVEL} LIBRARY DESTINATION pyllama_spec COMPONENT pyllama_spec)
endforeach()

Python_add_library(_processor MODULE USE_SABI 3.10 WITH_SOABI "${SPEC_DIR}/processor/processor.c")
add_dependencies(engine _processor)
install(TARGETS _processor LIBRARY DESTINATION pyllama_spec COMPONENT pyllama_spec)
