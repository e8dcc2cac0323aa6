// Cycles that products with repacked weights take for 256 weights, by how many activation rows they have. Not a test.
//
//     g++ -O3 -std=gnu++17 -march=native -DNDEBUG -Icsrc $(printf -- '-Ivendor/llama.cpp/ggml/%s ' src src/ggml-cpu include)
//         tests/kernels/tile_speed.cpp build/native/.../libggml-base.a -o tile_speed
//     ./tile_speed N_K memory|cache [TYPES] [GHz]
//
// -DVECTORS='Twice<Avx2<false>>' measures another instruction set that the processor has. The least of several passes in turns,
// of this thread's time, at a clock that is given (3.63).
#include "kernels/repacked_x86.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if !defined(VECTORS)
#define VECTORS Avx512
#endif

using namespace pyllama_spec;

namespace {

constexpr int WIDTHS[] = { 1, 2, 3, 4, 5, 6, 8 };

double now_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e9 * double(now.tv_sec) + double(now.tv_nsec);
}

struct Bench {
    int64_t n_k, n_out;
    const char * weights;
    const RepackedKernel & kernel;
    int64_t n_blocks = n_k / kernel.length, n_panels = (n_k + 1279) / 1280, n_in_panel = (n_blocks + n_panels - 1) / n_panels;
    int64_t height = n_panels > 1 ? 64 : kernel.height;
    int64_t stride = n_out + 48;  // a row of results; rows a multiple of 4 KB apart would evict each other
    std::vector<char>  x   = std::vector<char>(n_blocks * kernel.n_x_bytes * MAX_TILE, 0x3c);  // scales that are no denormals
    std::vector<float> out = std::vector<float>(stride * MAX_TILE);

    // In panels, parts and tiles as repacked.cpp has them.
    double run(int width) {
        const double start = now_ns();
        for (int64_t begin = 0; begin < n_out; begin += height) {
            const char * part = weights + begin / kernel.height * n_blocks * kernel.n_bytes;
            for (int64_t b = 0; b < n_blocks; b += n_in_panel) {
                for (int n_tiles = (width + kernel.n_most - 1) / kernel.n_most, first = 0; first < width; --n_tiles) {
                    const int n = (width - first + n_tiles - 1) / n_tiles;
                    float * rows[MAX_TILE];
                    for (int r = 0; r < n; ++r) {
                        rows[r] = out.data() + (first + r) * stride + begin;
                    }
                    kernel.tiles[n - 1]({ part + height / kernel.height * b * kernel.n_bytes, height,
                        std::min(n_in_panel, n_blocks - b), x.data() + (first * n_blocks + b * n) * kernel.n_x_bytes, rows, b == 0 });
                    first += n;
                }
            }
        }
        return (now_ns() - start) * 256 / double(n_out * n_k);
    }
};

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 3) {
        return 2;
    }
    const bool   is_from_memory = std::strcmp(argv[2], "memory") == 0;
    const double ghz = argc > 4 ? std::atof(argv[4]) : 3.63;
    const size_t n_bytes = size_t(is_from_memory ? 128 : 4) << 20;
    char * weights = (char *) std::aligned_alloc(2 << 20, n_bytes);
#if defined(__linux__)
    madvise(weights, n_bytes, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < n_bytes; ++i) {
        weights[i] = char((i * 2654435761u >> 13) % 16 | 0x10);
    }
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const RepackedKernel * kernel = kernel_x86_of<VECTORS>((ggml_type) i);
        const char * name = kernel ? ggml_type_name((ggml_type) i) : "";
        const int64_t n_k = std::atoll(argv[1]);
        if (!kernel || n_k % kernel->length != 0 || (argc > 3 && !std::strstr(argv[3], name))) {
            continue;
        }
        const int64_t n_row = n_k / kernel->length * kernel->n_bytes / kernel->height;
        Bench bench = { n_k, is_from_memory ? int64_t(n_bytes) / n_row / 64 * 64 : 64, weights, *kernel };
        std::printf("%-7s", name);
        for (const int width : WIDTHS) {
            double least = 1e30;
            for (int pass = is_from_memory ? 4 : 60; pass > 0; --pass) {
                least = std::min(least, bench.run(width));
            }
            std::printf(" %6.1f", least * ghz);
        }
        std::printf("\n");
    }
}
