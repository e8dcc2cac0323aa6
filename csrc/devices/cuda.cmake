# CUDA from a toolkit or from pip's packages: finds cuBLAS, selects the GPUs that the kernels are compiled for, and sets
# where the module looks for its libraries at import. Included before the engine is configured.

# A compiler without the rest of a toolkit is enough: pip's nvidia-cublas has the headers and the library of cuBLAS.
find_package(CUDAToolkit QUIET)
if (NOT CUDAToolkit_FOUND)
    message(FATAL_ERROR "GGML_CUDA needs NVIDIA's compiler, and nvcc was not found. Install the CUDA toolkit, and put "
        "its bin folder on PATH or name it: -C cmake.define.CMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc")
endif()
set(CUDA_MAJOR ${CUDAToolkit_VERSION_MAJOR})

# pip's folders: nvidia/cu13 from CUDA 13 on, a folder for each library before.
set(CUDA_PIP_FOLDERS nvidia/cu${CUDA_MAJOR} nvidia/cublas nvidia/cuda_runtime)
# A second run finds the targets through the cache of the first.
if (NOT TARGET CUDA::cublas OR CUDA_PIP_INCLUDE)
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_path('purelib'))"
        OUTPUT_VARIABLE SITE_PACKAGES OUTPUT_STRIP_TRAILING_WHITESPACE)
    foreach (FOLDER ${CUDA_PIP_FOLDERS})
        foreach (NAME cublas cublasLt)
            set(FILE "${SITE_PACKAGES}/${FOLDER}/lib/lib${NAME}.so.${CUDA_MAJOR}")
            if (EXISTS "${FILE}")
                # FindCUDAToolkit makes its targets from these when the engine calls it.
                set(CUDA_${NAME}_LIBRARY "${FILE}" CACHE FILEPATH "From pip's nvidia-cublas" FORCE)
                set(CUDA_PIP_INCLUDE "${SITE_PACKAGES}/${FOLDER}/include" CACHE INTERNAL "")
            endif()
        endforeach()
    endforeach()
    if (NOT EXISTS "${CUDA_PIP_INCLUDE}/cublas_v2.h")
        set(CUDA_PIP_NAMES "nvidia-cublas nvidia-cuda-runtime")
        if (CUDA_MAJOR LESS 13)
            set(CUDA_PIP_NAMES "nvidia-cublas-cu${CUDA_MAJOR} nvidia-cuda-runtime-cu${CUDA_MAJOR}")
        endif()
        message(FATAL_ERROR "GGML_CUDA needs cuBLAS ${CUDA_MAJOR}; it is neither in the toolkit in "
            "${CUDAToolkit_LIBRARY_DIR} nor in ${SITE_PACKAGES}. Install it first: pip install ${CUDA_PIP_NAMES}")
    endif()
    message(STATUS "cuBLAS from ${CUDA_cublas_LIBRARY}")
endif()

execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE CUDA_NO_GPU OUTPUT_QUIET ERROR_QUIET)

# With memory mapping, the module links the driver's own library, and could not be imported without a driver.
if (CUDA_NO_GPU)
    set(GGML_CUDA_NO_VMM ON CACHE BOOL "")
endif()
# Several GPUs work without it, and the module would need one more library.
set(GGML_CUDA_NCCL OFF CACHE BOOL "")

# Compiles for this machine's GPU. Without a GPU, or for other machines (PYLLAMA_SPEC_PORTABLE), it uses the engine's
# own list from Turing to Blackwell. The list is repeated here since upstream's depends on GGML_NATIVE, which is about
# the CPU.
if (NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS} AND (CUDA_NO_GPU OR PYLLAMA_SPEC_PORTABLE))
    set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-virtual 86-real 89-real 90-virtual)
    if (CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
        list(APPEND CMAKE_CUDA_ARCHITECTURES 120a-real)
    endif()
    message(STATUS "No GPU is to be seen: compiling for ${CMAKE_CUDA_ARCHITECTURES}, which takes long. For one: "
        "-C cmake.define.CMAKE_CUDA_ARCHITECTURES=90")
endif()

# Changes the engine's targets after they are defined.
function(pyllama_spec_link_cuda module)
    if (CUDA_PIP_INCLUDE)
        # Only these headers: pip's folder also has those of its CUDA runtime, which may be newer than nvcc.
        file(GLOB HEADERS "${CUDA_PIP_INCLUDE}/cublas*.h")
        file(COPY ${HEADERS} DESTINATION "${CMAKE_BINARY_DIR}/cublas")
        target_include_directories(ggml-cuda SYSTEM PRIVATE "${CMAKE_BINARY_DIR}/cublas")
    endif()
    # Looks relative to this package first, where pip installs the libraries in any environment; then in the toolkit.
    set(PLACES)
    foreach (FOLDER ${CUDA_PIP_FOLDERS})
        list(APPEND PLACES "$ORIGIN/../${FOLDER}/lib")
    endforeach()
    list(APPEND PLACES "${CUDAToolkit_LIBRARY_DIR}")
    set_target_properties(${module} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${PLACES}")
endfunction()
