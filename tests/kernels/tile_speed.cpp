// Cycles that a tile of quantised weights takes for 256 weights, by how many activation rows it has. Not a test.
//
//     g++ -O3 -std=gnu++17 -march=native -DNDEBUG -Icsrc $(printf -- '-Ivendor/llama.cpp/ggml/%s ' src src/ggml-cpu include)
//         tests/kernels/tile_speed.cpp -o tile_speed && ./tile_speed N_K memory|cache [GHz]
//
// The kernels are those of the processor that it is compiled for: -march=haswell for AVX2. The least of several passes in
// turns, of this thread's time, at a clock that is given (3.63).
#include "kernels/interleaved_avx2.h"
#include "kernels/interleaved_avx512.h"
#include "kernels/repacked_avx512.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

using namespace pyllama_spec;
#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)
using namespace pyllama_spec::avx512;
#else
using namespace pyllama_spec::avx2;
#endif

namespace {

constexpr int64_t HEIGHT_OF_CHUNK = 64;

// Memory in huge pages, as the buffer type has it.
template <class T> struct HugePages {
    using value_type = T;

    T * allocate(size_t n) {
        constexpr size_t PAGE = 2 << 20;
        const size_t n_bytes = (n * sizeof(T) + PAGE - 1) / PAGE * PAGE;
        void * out = std::aligned_alloc(PAGE, n_bytes);
#if defined(__linux__)
        madvise(out, n_bytes, MADV_HUGEPAGE);
#endif
        return (T *) out;
    }

    void deallocate(T * at, size_t) {
        std::free(at);
    }
};

struct Bench {
    int64_t           n_k;
    bool              is_from_memory;
    double            ghz;
    std::vector<char, HugePages<char>> weights;

    static double now_ns() {
        timespec now;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return 1e9 * double(now.tv_sec) + double(now.tv_nsec);
    }

    void run(const char * name, const Tile (&tiles)[MAX_COLUMNS], size_t stride, int height) {
        const int64_t n_groups = (n_k + GROUP - 1) / GROUP, n_all = int64_t((weights.size() - 8192) / stride * height);
        const int64_t n_out = is_from_memory ? n_all / HEIGHT_OF_CHUNK * HEIGHT_OF_CHUNK : HEIGHT_OF_CHUNK;
        std::vector<Group> x(n_groups * MAX_COLUMNS);
        std::memset((void *) x.data(), 1, x.size() * sizeof(Group));
        std::vector<float> out(n_out * MAX_COLUMNS);
        float * rows[MAX_COLUMNS];
        double least[MAX_COLUMNS];
        for (int i = 0; i < MAX_COLUMNS; ++i) {
            rows[i]  = out.data() + i * n_out;
            least[i] = 1e30;
        }
        const Job job = { weights.data(), stride, n_k, n_groups, x.data(), rows };
        for (int pass = is_from_memory ? 3 : 150; pass > 0; --pass) {
            for (int i = 0; i < MAX_COLUMNS; ++i) {
                const double start = now_ns();
                for (int64_t begin = 0; begin < n_out; begin += HEIGHT_OF_CHUNK) {
                    tiles[i](job, begin, begin + HEIGHT_OF_CHUNK, 0);
                }
                least[i] = std::min(least[i], now_ns() - start);
            }
        }
        std::printf("%-7s", name);
        for (const double ns : least) {
            std::printf(" %6.1f", ns * ghz * GROUP / double(n_out * n_k));
        }
        std::printf("\n");
    }

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)
    // Weights repacked at loading, in panels and parts as in repacked.h.
    template <class T> void repacked(const char * name) {
        using Block = typename T::Block;
        void (*const tiles[])(const Panel &) = { tile_x16<T, 1>, tile_x16<T, 2>, tile_x16<T, 3>, tile_x16<T, 4>,
            tile_x16<T, 5>, tile_x16<T, 6>, tile_x16<T, 7>, tile_x16<T, 8> };
        const int64_t n_blocks = n_k / T::LENGTH, n_panels = (n_k + 1279) / 1280, n_in_panel = (n_blocks + n_panels - 1) / n_panels;
        const int64_t n_all = int64_t((weights.size() - 8192) / (n_blocks * sizeof(Block))) * 16;
        const int64_t n_out = is_from_memory ? n_all / HEIGHT_OF_CHUNK * HEIGHT_OF_CHUNK : HEIGHT_OF_CHUNK;
        const int64_t stride = n_out + 48;  // a row of results; rows a multiple of 4 KB apart would evict each other
        std::vector<char>  x(n_blocks * T::N_X_BYTES * MAX_TILE, 1);
        std::vector<float> out(stride * MAX_TILE);
        std::printf("%-7s", name);
        for (int width = 1; width <= MAX_TILE; ++width) {
            double least = 1e30;
            for (int pass = is_from_memory ? 4 : 150; pass > 0; --pass) {
                const double start = now_ns();
                for (int64_t begin = 0; begin < n_out; begin += HEIGHT_OF_CHUNK) {
                    const Block * part = (const Block *) weights.data() + begin / 16 * n_blocks;
                    for (int64_t b = 0; b < n_blocks; b += n_in_panel) {
                        float * rows[MAX_TILE];
                        for (int r = 0; r < width; ++r) {
                            rows[r] = out.data() + r * stride + begin;
                        }
                        tiles[width - 1]({ (const char *) (part + HEIGHT_OF_CHUNK / 16 * b), HEIGHT_OF_CHUNK,
                            std::min(n_in_panel, n_blocks - b), x.data() + b * width * T::N_X_BYTES, rows, b == 0 });
                    }
                }
                least = std::min(least, now_ns() - start);
            }
            std::printf(" %6.1f", least * ghz * GROUP / double(n_out * n_k));
        }
        std::printf("\n");
    }
#endif

    template <class T> void flat(const char * name) {
        const Tile tiles[] = { tile<T, 1>, tile<T, 2>, tile<T, 3>, tile<T, 4>, tile<T, 5>, tile<T, 6>, tile<T, 7>, tile<T, 8> };
        run(name, tiles, sizeof(typename T::Block) * n_k * T::PER_GROUP / GROUP, 1);
    }
};

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 3) {
        return 2;
    }
    const bool is_from_memory = std::strcmp(argv[2], "memory") == 0;
    const size_t n_bytes = size_t(is_from_memory ? 192 : 4) << 20;
    Bench bench = { std::atoll(argv[1]), is_from_memory, argc > 3 ? std::atof(argv[3]) : 3.63, std::vector<char, HugePages<char>>(n_bytes) };
    for (size_t i = 0; i < bench.weights.size(); ++i) {
        bench.weights[i] = char((i * 2654435761u >> 13) % 16 | 0x10);  // scales that are no denormals
    }
#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)
    bench.repacked<Q8_0x16>("Q8_0x16");
    bench.repacked<Q5_0x16>("Q5_0x16");
    bench.repacked<Q4_0x16>("Q4_0x16");
    if (bench.n_k % GROUP == 0) {
        bench.repacked<Q6_Kx16>("Q6_Kx16");
        bench.repacked<Q5_Kx16>("Q5_Kx16");
        bench.repacked<Q4_Kx16>("Q4_Kx16");
    }
#endif
    const Tile plain[] = { tile_x8<Q4_0x8, 1>, tile_x8<Q4_0x8, 2>, tile_x8<Q4_0x8, 3>, tile_x8<Q4_0x8, 4>,
        tile_x8<Q4_0x8, 5>, tile_x8<Q4_0x8, 6>, tile_x8<Q4_0x8, 7>, tile_x8<Q4_0x8, 8> };
    bench.run("Q4_0x8", plain, sizeof(block_q4_0x8) * bench.n_k / 32, 8);
    const Tile interleaved[] = { tile_q4_Kx8<1>, tile_q4_Kx8<2>, tile_q4_Kx8<3>, tile_q4_Kx8<4>, tile_q4_Kx8<5>,
        tile_q4_Kx8<6>, tile_q4_Kx8<7>, tile_q4_Kx8<8> };
    bench.run("Q4_Kx8", interleaved, sizeof(block_q4_Kx8) * bench.n_k / GROUP, 8);
    bench.flat<Q8_0>("Q8_0");
    bench.flat<Q4_1>("Q4_1");
    bench.flat<Q5_0>("Q5_0");
    bench.flat<Q5_K>("Q5_K");
    bench.flat<Q6_K>("Q6_K");
    bench.flat<Q3_K>("Q3_K");
    bench.flat<Iq4Xs>("IQ4_XS");
}
