# Included before any target. With a compiler cache, a second `pip install .` compiles nothing. Relative paths let
# another build folder reuse the cache. A launcher that the user names is kept; `make` names its own.
option(PYLLAMA_SPEC_CCACHE "Compile through ccache where it is installed" ON)
find_program(PYLLAMA_SPEC_CCACHE_PROGRAM ccache)
mark_as_advanced(PYLLAMA_SPEC_CCACHE_PROGRAM)
if (PYLLAMA_SPEC_CCACHE AND PYLLAMA_SPEC_CCACHE_PROGRAM AND CMAKE_GENERATOR MATCHES "Ninja|Makefiles")
    foreach (LANGUAGE C CXX)
        if (NOT DEFINED CMAKE_${LANGUAGE}_COMPILER_LAUNCHER)
            set(CMAKE_${LANGUAGE}_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
                "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${PYLLAMA_SPEC_CCACHE_PROGRAM}")
        endif()
    endforeach()
endif()
