// A buffer type whose weights are repacked when they are set (repacked.h), and the products with them. Call sites are in
// vendor/patches/0034.
#include "repacked.h"

#include "rows.h"
#include "tiles.h"
#include "traits.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace pyllama_spec {

namespace {

thread_local int t_is_off = 0;

constexpr int64_t HEIGHT = 16, PART = 64;  // weight rows

// Where the blocks of a matrix are.
struct Layout {
    const RepackedKernel & kernel;
    int64_t n_k, n_out, n_blocks, n_in_panel, height;  // height: of a part

    Layout(const RepackedKernel & kernel, const ggml_tensor * weights)
        : kernel(kernel), n_k(weights->ne[0]), n_out(weights->ne[1]), n_blocks(n_k / kernel.length) {
        constexpr int64_t N_MOST = 1280;
        const int64_t n_panels = (n_k + N_MOST - 1) / N_MOST;
        n_in_panel = (n_blocks + n_panels - 1) / n_panels;
        height     = n_in_panel < n_blocks ? PART : HEIGHT;
    }

    int64_t n_groups() const {
        return n_out / HEIGHT;
    }

    // The number of weight rows in the part from row i0 on.
    int64_t height_at(int64_t i0) const {
        return std::min(height, n_out - i0);
    }

    // Block b of the 16 rows from i on.
    size_t at(int64_t i, int64_t b) const {
        const int64_t i0 = i / height * height, n_in_part = height_at(i0) / HEIGHT, panel = b / n_in_panel * n_in_panel;
        const int64_t n_here = std::min(n_in_panel, n_blocks - panel);
        return (size_t) (i0 / HEIGHT * n_blocks + n_in_part * panel + (i - i0) / HEIGHT * n_here + b - panel) * kernel.n_bytes;
    }
};

// Calls f(i) for each i below n: with several threads if there is much to do.
template <class F> void for_each(int64_t n, bool is_much, F f) {
    std::atomic<int64_t> next = 0;
    const auto work = [&] {
        for (int64_t i = next++; i < n; i = next++) {
            f(i);
        }
    };
    std::vector<std::thread> threads;
    const int64_t n_threads = is_much ? std::min<int64_t>({ std::thread::hardware_concurrency(), 16, n }) : 1;
    try {
        while ((int64_t) threads.size() + 1 < n_threads) {
            threads.emplace_back(work);
        }
    } catch (const std::system_error &) {
        // fewer threads, then
    }
    work();
    for (std::thread & thread : threads) {
        thread.join();
    }
}

const RepackedKernel & kernel_of(const ggml_tensor * weights) {
    return *repacked_kernel_of(weights->type);
}

bool fits(const ggml_tensor * weights) {
    const RepackedKernel * kernel = repacked_kernel_of(weights->type);
    return kernel && ggml_n_dims(weights) == 2 && ggml_is_contiguous(weights) && weights->ne[0] % kernel->length == 0 &&
        weights->ne[1] % HEIGHT == 0;
}

// A whole repacked tensor, not a view of some of its rows.
bool is_whole(const ggml_tensor * weights) {
    const ggml_tensor * of = weights->view_src;
    return fits(weights) && (!of || (of->data == weights->data && ggml_are_same_shape(of, weights)));
}

// 16 rows in the engine's format.
void unpack_group(const Layout & layout, const char * data, int64_t i, char * to, size_t stride) {
    const size_t n_bytes = layout.kernel.n_bytes / HEIGHT;
    for (int64_t b = 0; b < layout.n_blocks; ++b) {
        layout.kernel.unpack(data + layout.at(i, b), to + b * n_bytes, stride);
    }
}

void pack_group(const Layout & layout, const char * from, size_t stride, char * data, int64_t i) {
    const size_t n_bytes = layout.kernel.n_bytes / HEIGHT;
    for (int64_t b = 0; b < layout.n_blocks; ++b) {
        layout.kernel.pack(from + b * n_bytes, stride, data + layout.at(i, b));
    }
}

// Calls f(first byte in the tensor, first byte in the group, number of bytes, i) for the groups of rows of a range.
template <class F> void for_groups(const ggml_tensor * tensor, size_t offset, size_t size, F f) {
    const size_t n_group = HEIGHT * tensor->nb[1], first = offset / n_group, last = (offset + size + n_group - 1) / n_group;
    for_each((int64_t) (last - first), size > (1 << 20), [&](int64_t k) {
        const size_t start = (first + (size_t) k) * n_group, begin = std::max(start, offset);
        f(begin, begin - start, std::min(start + n_group, offset + size) - begin, (int64_t) (first + (size_t) k) * HEIGHT);
    });
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(is_whole(tensor));
    const Layout layout(kernel_of(tensor), tensor);
    const size_t stride = tensor->nb[1];
    for_groups(tensor, offset, size, [&](size_t begin, size_t at, size_t n, int64_t i) {
        const char * from = (const char *) data + (begin - offset);
        if (n == HEIGHT * stride) {
            return pack_group(layout, from, stride, (char *) tensor->data, i);
        }
        std::vector<char> rows(HEIGHT * stride);
        unpack_group(layout, (const char *) tensor->data, i, rows.data(), stride);
        std::memcpy(rows.data() + at, from, n);
        pack_group(layout, rows.data(), stride, (char *) tensor->data, i);
    });
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    GGML_ASSERT(is_whole(tensor));
    const Layout layout(kernel_of(tensor), tensor);
    for_groups(tensor, offset, size, [&](size_t begin, size_t at, size_t n, int64_t i) {
        std::vector<char> rows(HEIGHT * tensor->nb[1]);
        unpack_group(layout, (const char *) tensor->data, i, rows.data(), tensor->nb[1]);
        std::memcpy((char *) data + (begin - offset), rows.data() + at, n);
    });
}

// ---- products


struct Product {
    const ggml_compute_params * params;
    const ggml_tensor *         dst;
    const ggml_tensor *         weights = dst->src[0];
    const ggml_tensor *         from    = dst->src[1];
    Layout                      layout  = Layout(kernel_of(weights), weights);
    const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu(weights->type);
    size_t                      n_row   = ggml_row_size(traits->vec_dot_type, layout.n_k);  // an activation row as the engine packs it
    int64_t                     n_rows  = ggml_nrows(from);
    int64_t                     n_tiles = (n_rows + MAX_TILE - 1) / MAX_TILE;

    // The first row of a tile; tiles are of about equal width.
    int64_t first_of(int64_t tile) const {
        return tile * (n_rows / n_tiles) + std::min(tile, n_rows % n_tiles);
    }

    size_t n_x_row() const {
        return layout.n_blocks * layout.kernel.n_x_bytes;
    }

    const float * row(int64_t i) const {
        const int64_t i1 = i % from->ne[1], i2 = i / from->ne[1] % from->ne[2], i3 = i / from->ne[1] / from->ne[2];
        return (const float *) ((const char *) from->data + i1 * from->nb[1] + i2 * from->nb[2] + i3 * from->nb[3]);
    }

    float * out(int64_t i) const {
        const int64_t i1 = i % from->ne[1], i2 = i / from->ne[1] % from->ne[2], i3 = i / from->ne[1] / from->ne[2];
        return (float *) ((char *) dst->data + i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]);
    }

    void begin_chunks() const {
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        ggml_barrier(params->threadpool);
    }

    // Calls f(first weight row, end) for this thread's chunks: whole parts.
    template <class F> void for_chunks(F f) const {
        const int64_t step = layout.height, wish = layout.n_out / (params->nth * 2) / step * step;
        const int64_t height = std::clamp<int64_t>(wish, step, 256), n_chunks = (layout.n_out + height - 1) / height;
        for (int64_t i = params->ith; i < n_chunks; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            f(i * height, std::min(layout.n_out, (i + 1) * height));
        }
    }

    // Each row is packed once, for all threads.
    void pack_rows(char * x) const {
        char * packed = x + n_rows * n_x_row() + params->ith * n_row;
        for (int64_t tile = 0; tile < n_tiles; ++tile) {
            const int64_t first = first_of(tile), width = first_of(tile + 1) - first;
            for (int64_t r = 0; r < width; ++r) {
                if ((first + r) % params->nth == params->ith) {
                    const auto quantize = layout.kernel.quantize ? layout.kernel.quantize : traits_of_rows()->from_float;
                    quantize(row(first + r), packed, layout.n_k);
                    layout.kernel.fill(packed, layout.n_blocks, x + first * n_x_row(), (int) width, (int) r);
                }
            }
        }
    }

    const ggml_type_traits_cpu * traits_of_rows() const {
        return ggml_get_type_traits_cpu(traits->vec_dot_type);
    }

    void compute() const {
        char * x = (char *) params->wdata;
        pack_rows(x);
        begin_chunks();
        // With several tiles, weights stay in the second cache for all of them.
        constexpr int64_t N_CACHED = 64 << 10;
        const int64_t n_group = layout.n_blocks * layout.kernel.n_bytes;
        const int64_t step = layout.height == PART ? PART : n_tiles == 1 ? 256 : std::max<int64_t>(N_CACHED / n_group, 1) * HEIGHT;
        for_chunks([&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i += step) {
                for (int64_t b = 0; b < layout.n_blocks; b += layout.n_in_panel) {
                    for (int64_t tile = 0; tile < n_tiles; ++tile) {
                        multiply(x, tile, i, std::min(end, i + step) - i, b);
                    }
                }
            }
        });
    }

    void multiply(const char * x, int64_t tile, int64_t i, int64_t n, int64_t b) const {
        const int64_t first = first_of(tile), width = first_of(tile + 1) - first;
        float * outs[MAX_TILE];
        for (int64_t r = 0; r < width; ++r) {
            outs[r] = out(first + r) + i;
        }
        layout.kernel.tiles[width - 1]({ (const char *) weights->data + layout.at(i, b), n,
            std::min(layout.n_in_panel, layout.n_blocks - b),
            x + first * n_x_row() + b * width * layout.kernel.n_x_bytes, outs, b == 0 });
    }

    // With the engine's own kernel, for comparisons.
    void compute_stock() const {
        char * x = (char *) params->wdata, * rows = x + n_rows * n_row + params->ith * HEIGHT * weights->nb[1];
        for (int64_t i = params->ith; i < n_rows; i += params->nth) {
            traits_of_rows()->from_float(row(i), x + i * n_row, layout.n_k);
        }
        begin_chunks();
        for_chunks([&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i += HEIGHT) {
                unpack_group(layout, (const char *) weights->data, i, rows, weights->nb[1]);
                for (int64_t r = 0; r < n_rows; ++r) {
                    for (int64_t k = 0; k < HEIGHT; ++k) {
                        traits->vec_dot((int) layout.n_k, out(r) + i + k, 0, rows + k * weights->nb[1], 0, x + r * n_row, 0, 1);
                    }
                }
            }
        });
    }

    size_t n_bytes(int n_threads) const {
        return std::max((size_t) n_rows * n_x_row() + (size_t) n_threads * n_row,
            (size_t) n_rows * n_row + (size_t) n_threads * HEIGHT * weights->nb[1]);
    }
};

// Rows of a table: a model may read its output matrix so.
void get_rows(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * table = dst->src[0], * ids = dst->src[1];
    const Layout layout(kernel_of(table), table);
    char * rows = (char *) params->wdata + (size_t) params->ith * HEIGHT * table->nb[1];
    for (int64_t k = params->ith; k < ggml_nelements(ids); k += params->nth) {
        const int64_t k0 = k % ids->ne[0], k1 = k / ids->ne[0] % ids->ne[1], k2 = k / ids->ne[0] / ids->ne[1];
        const int32_t id = *(const int32_t *) ((const char *) ids->data + k0 * ids->nb[0] + k1 * ids->nb[1] + k2 * ids->nb[2]);
        GGML_ASSERT(id >= 0 && id < table->ne[1]);
        unpack_group(layout, (const char *) table->data, id / HEIGHT * HEIGHT, rows, table->nb[1]);
        float * out = (float *) ((char *) dst->data + k0 * dst->nb[1] + k1 * dst->nb[2] + k2 * dst->nb[3]);
        ggml_get_type_traits(table->type)->to_float(rows + id % HEIGHT * table->nb[1], out, layout.n_k);
    }
}

class Traits : public ggml::cpu::tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = op->op == GGML_OP_MUL_MAT ? Product{ nullptr, op }.n_bytes(n_threads)
                                         : (size_t) n_threads * HEIGHT * op->src[0]->nb[1];
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op != GGML_OP_MUL_MAT) {
            get_rows(params, op);
        } else if (is_stock(params) || params->use_ref) {
            Product{ params, op }.compute_stock();
        } else {
            Product{ params, op }.compute();
        }
        return true;
    }
};

class BufferType : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        if (!weights || !weights->buffer || weights->buffer->buft != pyllama_spec_repacked_buffer_type() || !is_whole(weights)) {
            return false;
        }
        // The loader asks with an empty buffer whether it shall place a tensor here.
        const bool is_question = ggml_backend_buffer_get_size(weights->buffer) == 0;
        const ggml_tensor * from = op->src[1];
        if (op->op == GGML_OP_GET_ROWS) {
            return !is_question && from->type == GGML_TYPE_I32 && op->type == GGML_TYPE_F32;
        }
        return op->op == GGML_OP_MUL_MAT && !(is_question && (t_is_off || pyllama_spec_has_stock_kernels())) && from->type == GGML_TYPE_F32 && from->nb[0] == sizeof(float) &&
            (!from->buffer || ggml_backend_buft_is_host(from->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static Traits traits;
        const ggml_tensor * weights = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_GET_ROWS ? op->src[0] : nullptr;
        return weights && weights->buffer && weights->buffer->buft == pyllama_spec_repacked_buffer_type() ? &traits : nullptr;
    }
};

// ---- memory

#if defined(__linux__)

constexpr size_t HUGE_PAGE = 2 << 20;

void free_buffer(ggml_backend_buffer_t buffer) {
    munmap(buffer->context, ggml_backend_buffer_get_size(buffer));
}

// Huge pages, if the system has them: five to fifteen percent of a single row's speed.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    const size_t n_all = size + HUGE_PAGE;
    char * all = (char *) mmap(nullptr, n_all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) {
        return nullptr;
    }
    const size_t n_before = (HUGE_PAGE - (uintptr_t) all % HUGE_PAGE) % HUGE_PAGE, page = (size_t) sysconf(_SC_PAGESIZE);
    const size_t end = n_before + (size + page - 1) / page * page;
    if (n_before > 0) {
        munmap(all, n_before);
    }
    if (end < n_all) {
        munmap(all + end, n_all - end);
    }
    madvise(all + n_before, size, MADV_HUGEPAGE);
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(all + n_before, size);
    buffer->iface.free_buffer = free_buffer;
#else
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (!buffer) {
        return nullptr;
    }
#endif
    buffer->buft             = type;
    buffer->iface.set_tensor = set_tensor;
    buffer->iface.get_tensor = get_tensor;
    buffer->iface.cpy_tensor = nullptr;
    return buffer;
}

const char * name_of(ggml_backend_buffer_type_t) {
    return "CPU_ROWS";
}

size_t alignment_of(ggml_backend_buffer_type_t) {
    return 64;
}

}  // namespace

}  // namespace pyllama_spec

ggml_backend_buffer_type_t pyllama_spec_repacked_buffer_type(void) {
    if (!pyllama_spec::repacked_kernel_of(GGML_TYPE_Q8_0)) {
        return nullptr;
    }
    static ggml_backend_buffer_type type = [] {
        ggml_backend_buffer_type out = {};
        out.iface.get_name      = pyllama_spec::name_of;
        out.iface.alloc_buffer  = pyllama_spec::alloc_buffer;
        out.iface.get_alignment = pyllama_spec::alignment_of;
        out.device  = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
        out.context = new pyllama_spec::BufferType();
        return out;
    }();
    return &type;
}

void pyllama_spec_set_repacking(int is_on) {
    pyllama_spec::t_is_off = !is_on;
}

void pyllama_spec_give_back(const void * mapped, size_t n_bytes) {
#if defined(__linux__)
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), begin = ((uintptr_t) mapped + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t) mapped + n_bytes) / page * page;
    if (begin < end) {
        madvise((void *) begin, end - begin, MADV_DONTNEED);
    }
#else
    (void) mapped;
    (void) n_bytes;
#endif
}
