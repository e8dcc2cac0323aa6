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
#include <numeric>
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

constexpr int64_t PART = 64;  // weight rows

// Where the blocks of a matrix are.
struct Layout {
    const RepackedKernel & kernel;
    int64_t n_k, n_out, n_padded, n_blocks, n_in_panel, height;  // height: of a part

    Layout(const RepackedKernel & kernel, const ggml_tensor * weights)
        : kernel(kernel), n_k(weights->ne[0]), n_out(weights->ne[1]),
          n_padded((n_out + kernel.height - 1) / kernel.height * kernel.height), n_blocks(n_k / kernel.length) {
        constexpr int64_t N_MOST = 1280;
        const int64_t n_panels = (n_k + N_MOST - 1) / N_MOST;
        n_in_panel = (n_blocks + n_panels - 1) / n_panels;
        height     = n_in_panel < n_blocks ? PART : kernel.height;
    }

    // Block b of the group from row i on.
    size_t at(int64_t i, int64_t b) const {
        const int64_t i0 = i / height * height, n_in_part = std::min(height, n_padded - i0), panel = b / n_in_panel * n_in_panel;
        const int64_t n_here = std::min(n_in_panel, n_blocks - panel);
        return (size_t) (i0 * n_blocks + n_in_part * panel + (i - i0) * n_here + (b - panel) * kernel.height) / kernel.height
            * kernel.n_bytes;
    }

    // Bytes of a matrix.
    size_t n_bytes() const {
        return (size_t) (n_padded / kernel.height * n_blocks) * kernel.n_bytes;
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
    return kernel && ggml_n_dims(weights) <= 3 && ggml_is_contiguous(weights) && weights->ne[0] % kernel->length == 0;
}

// A whole repacked tensor, not a view of some of its rows.
bool is_whole(const ggml_tensor * weights) {
    const ggml_tensor * of = weights->view_src;
    return fits(weights) && (!of || (of->data == weights->data && ggml_are_same_shape(of, weights)));
}

// A group's rows in the engine's format.
void unpack_group(const Layout & layout, const char * data, int64_t i, char * to, size_t stride) {
    for (int64_t b = 0; b < layout.n_blocks; ++b) {
        layout.kernel.unpack(data + layout.at(i, b), to + b * layout.kernel.n_from, stride);
    }
}

void pack_group(const Layout & layout, const char * from, size_t stride, char * data, int64_t i) {
    for (int64_t b = 0; b < layout.n_blocks; ++b) {
        layout.kernel.pack(from + b * layout.kernel.n_from, stride, data + layout.at(i, b));
    }
}

// Calls f(first byte in the range, first byte in the group, number of bytes, matrix, i) for the groups of a range of bytes.
template <class F> void for_groups(const Layout & layout, const ggml_tensor * tensor, size_t offset, size_t size, F f) {
    const size_t n_row = tensor->nb[1], n_matrix = tensor->nb[2], end = offset + size;
    const size_t n_groups = layout.n_padded / layout.kernel.height;
    const auto group_at = [&](size_t byte) { return byte / n_matrix * n_groups + byte % n_matrix / n_row / layout.kernel.height; };
    const size_t first = group_at(offset), last = size > 0 ? group_at(end - 1) + 1 : first;
    for_each((int64_t) (last - first), size > (1 << 20), [&](int64_t k) {
        const size_t group = first + (size_t) k, matrix = group / n_groups, i = group % n_groups * layout.kernel.height;
        const size_t start = matrix * n_matrix + i * n_row, n_rows = std::min<size_t>(layout.kernel.height, layout.n_out - i);
        const size_t begin = std::max(start, offset);
        f(begin - offset, begin - start, std::min(start + n_rows * n_row, end) - begin,
            (char *) tensor->data + matrix * layout.n_bytes(), (int64_t) i);
    });
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(is_whole(tensor));
    const Layout layout(kernel_of(tensor), tensor);
    const size_t stride = tensor->nb[1], n_all = layout.kernel.height * stride;
    for_groups(layout, tensor, offset, size, [&](size_t from, size_t at, size_t n, char * matrix, int64_t i) {
        if (n == n_all) {
            return pack_group(layout, (const char *) data + from, stride, matrix, i);
        }
        std::vector<char> rows(n_all);
        if (n < std::min<int64_t>(layout.kernel.height, layout.n_out - i) * stride) {
            unpack_group(layout, matrix, i, rows.data(), stride);
        }
        std::memcpy(rows.data() + at, (const char *) data + from, n);
        pack_group(layout, rows.data(), stride, matrix, i);
    });
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    GGML_ASSERT(is_whole(tensor));
    const Layout layout(kernel_of(tensor), tensor);
    for_groups(layout, tensor, offset, size, [&](size_t from, size_t at, size_t n, const char * matrix, int64_t i) {
        std::vector<char> rows(layout.kernel.height * tensor->nb[1]);
        unpack_group(layout, matrix, i, rows.data(), tensor->nb[1]);
        std::memcpy((char *) data + from, rows.data() + at, n);
    });
}

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    return fits(tensor) ? Layout(kernel_of(tensor), tensor).n_bytes() * tensor->ne[2] : ggml_nbytes(tensor);
}

// ---- products

// An activation row and the place of its results.
struct Route {
    const float * from;
    float *       out;
};

// A product with one matrix or, for experts, with several.
struct Product {
    const ggml_compute_params * params;
    const ggml_tensor *         dst;
    const ggml_tensor *         weights = dst->src[0];
    const ggml_tensor *         from    = dst->src[1];
    Layout                      layout  = Layout(kernel_of(weights), weights);
    const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu(weights->type);
    const ggml_type_traits_cpu * traits_of_rows = ggml_get_type_traits_cpu(traits->vec_dot_type);
    size_t                      n_row   = ggml_row_size(traits->vec_dot_type, layout.n_k);  // as the engine packs it
    bool                        is_of_experts = dst->op == GGML_OP_MUL_MAT_ID;
    int64_t                     n_experts = is_of_experts ? weights->ne[2] : 1;
    int64_t                     n_rows  = is_of_experts ? ggml_nelements(dst->src[2]) : ggml_nrows(from);

    size_t n_x_row() const {
        return layout.n_blocks * layout.kernel.n_x_bytes;
    }

    template <class T> static T * at(T * data, const ggml_tensor * tensor, int64_t i1, int64_t i2, int64_t i3) {
        return (T *) ((char *) data + i1 * tensor->nb[1] + i2 * tensor->nb[2] + i3 * tensor->nb[3]);
    }

    // The memory for a product: of experts the routes and the first one of each, activations, and what a thread has alone.
    struct Work {
        Route *   routes;
        int64_t * starts;
        char *    x;
        char *    own;
    };

    size_t n_own() const {
        return std::max(n_row, (size_t) layout.kernel.height * weights->nb[1]);
    }

    size_t n_x() const {
        return (size_t) n_rows * std::max(n_x_row(), n_row);
    }

    size_t n_routes() const {
        return is_of_experts ? (n_rows * sizeof(Route) + (n_experts + 1) * sizeof(int64_t) + 63) / 64 * 64 : 0;
    }

    size_t n_bytes(int n_threads) const {
        return n_routes() + n_x() + (size_t) n_threads * n_own();
    }

    Work begin() const {
        char * const all = (char *) params->wdata, * const x = all + n_routes();
        const Work work = { (Route *) all, (int64_t *) (all + n_rows * sizeof(Route)), x, x + n_x() + params->ith * n_own() };
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        if (is_of_experts) {
            if (params->ith == 0) {
                find_routes(work.routes, work.starts);
            }
            ggml_barrier(params->threadpool);
        }
        return work;
    }

    void find_routes(Route * routes, int64_t * starts) const {
        const ggml_tensor * ids = dst->src[2];
        const auto for_all = [&](auto f) {
            for (int64_t token = 0; token < ids->ne[1]; ++token) {
                for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
                    const int32_t expert = *(const int32_t *) ((const char *) ids->data + token * ids->nb[1] + slot * ids->nb[0]);
                    GGML_ASSERT(expert >= 0 && expert < n_experts);
                    f(expert, Route{ at((const float *) from->data, from, slot % from->ne[1], token, 0),
                        at((float *) dst->data, dst, slot, token, 0) });
                }
            }
        };
        std::fill(starts, starts + n_experts + 1, 0);
        for_all([&](int32_t expert, const Route &) { ++starts[expert + 1]; });
        std::partial_sum(starts, starts + n_experts + 1, starts);
        for_all([&](int32_t expert, const Route & route) { routes[starts[expert]++] = route; });
        std::copy_backward(starts, starts + n_experts, starts + n_experts + 1);
        starts[0] = 0;
    }

    Route route(const Work & work, int64_t i) const {
        if (is_of_experts) {
            return work.routes[i];
        }
        const int64_t i1 = i % from->ne[1], i2 = i / from->ne[1] % from->ne[2], i3 = i / from->ne[1] / from->ne[2];
        return { at((const float *) from->data, from, i1, i2, i3), at((float *) dst->data, dst, i1, i2, i3) };
    }

    // The number of the first row of an expert, in the order of the routes.
    int64_t start(const Work & work, int64_t expert) const {
        return is_of_experts ? work.starts[expert] : expert * n_rows;
    }

    // Calls f(expert, first weight row, end) for this thread's chunks: whole parts.
    template <class F> void for_chunks(const Work & work, F f) const {
        const int64_t step = layout.height, wish = layout.n_padded / (params->nth * 2) / step * step;
        const int64_t height = std::clamp<int64_t>(wish, step, 256), n_chunks = (layout.n_padded + height - 1) / height;
        int64_t next = params->ith, n_before = 0;
        for (int64_t expert = 0; expert < n_experts; ++expert) {
            if (start(work, expert) == start(work, expert + 1)) {
                continue;
            }
            for (; next < n_before + n_chunks; next = ggml_threadpool_chunk_add(params->threadpool, 1)) {
                const int64_t i = (next - n_before) * height;
                f(expert, i, std::min(layout.n_padded, i + height));
            }
            n_before += n_chunks;
        }
    }

    // The tiles of an expert's rows, of about equal width.
    struct Tiles {
        int64_t first, n_rows, n;

        int64_t begin(int64_t tile) const {
            return first + tile * (n_rows / n) + std::min(tile, n_rows % n);
        }
    };

    Tiles tiles_of(const Work & work, int64_t expert) const {
        const int64_t first = start(work, expert), n = start(work, expert + 1) - first;
        return { first, n, (n + layout.kernel.n_most - 1) / layout.kernel.n_most };
    }

    // Each row is packed once, for all threads.
    void pack_rows(const Work & work) const {
        const auto quantize = layout.kernel.quantize ? layout.kernel.quantize : traits_of_rows->from_float;
        for (int64_t expert = 0; expert < n_experts; ++expert) {
            const Tiles tiles = tiles_of(work, expert);
            for (int64_t tile = 0; tile < tiles.n; ++tile) {
                const int64_t first = tiles.begin(tile), width = tiles.begin(tile + 1) - first;
                for (int64_t r = 0; r < width; ++r) {
                    if ((first + r) % params->nth == params->ith) {
                        quantize(route(work, first + r).from, work.own, layout.n_k);
                        layout.kernel.fill(work.own, layout.n_blocks, work.x + first * n_x_row(), (int) width, (int) r);
                    }
                }
            }
        }
    }

    void compute() const {
        const Work work = begin();
        pack_rows(work);
        ggml_barrier(params->threadpool);
        // With several tiles, weights stay in the second cache for all of them.
        constexpr int64_t N_CACHED = 64 << 10;
        const int64_t n_group = layout.n_blocks * layout.kernel.n_bytes, most = std::max<int64_t>(N_CACHED / n_group, 1);
        for_chunks(work, [&](int64_t expert, int64_t begin, int64_t end) {
            const Tiles tiles = tiles_of(work, expert);
            const int64_t step = layout.height == PART ? PART : tiles.n == 1 ? 256 : most * layout.kernel.height;
            for (int64_t i = begin; i < end; i += step) {
                for (int64_t b = 0; b < layout.n_blocks; b += layout.n_in_panel) {
                    for (int64_t tile = 0; tile < tiles.n; ++tile) {
                        const int64_t first = tiles.begin(tile);
                        multiply(work, expert, first, tiles.begin(tile + 1) - first, i, std::min(end, i + step), b);
                    }
                }
            }
        });
    }

    // The weight rows i .. end in the panel from block b on.
    void multiply(const Work & work, int64_t expert, int64_t first, int64_t width, int64_t i, int64_t end, int64_t b) const {
        const RepackedKernel & kernel = layout.kernel;
        const char * matrix = (const char *) weights->data + expert * layout.n_bytes();
        const int64_t n_blocks = std::min(layout.n_in_panel, layout.n_blocks - b);
        const char * x = work.x + first * n_x_row() + b * width * kernel.n_x_bytes;
        float * outs[MAX_TILE];
        const int64_t n_whole = std::min(end, layout.n_out / kernel.height * kernel.height) - i;
        if (n_whole > 0) {
            for (int64_t r = 0; r < width; ++r) {
                outs[r] = route(work, first + r).out + i;
            }
            kernel.tiles[width - 1]({ matrix + layout.at(i, b), n_whole, n_blocks, x, outs, b == 0 });
        }
        if (end > layout.n_out) {  // the last group's padding has no place in the result
            const int64_t i_last = layout.n_padded - kernel.height, n_last = layout.n_out - i_last;
            float sums[MAX_TILE][64];
            for (int64_t r = 0; r < width; ++r) {
                outs[r] = sums[r];
                if (b > 0) {
                    std::copy_n(route(work, first + r).out + i_last, n_last, sums[r]);
                }
            }
            kernel.tiles[width - 1]({ matrix + layout.at(i_last, b), kernel.height, n_blocks, x, outs, b == 0 });
            for (int64_t r = 0; r < width; ++r) {
                std::copy_n(sums[r], n_last, route(work, first + r).out + i_last);
            }
        }
    }

    // With the engine's own kernel, for comparisons.
    void compute_stock() const {
        const Work work = begin();
        for (int64_t i = params->ith; i < n_rows; i += params->nth) {
            traits_of_rows->from_float(route(work, i).from, work.x + i * n_row, layout.n_k);
        }
        ggml_barrier(params->threadpool);
        for_chunks(work, [&](int64_t expert, int64_t begin, int64_t end) {
            const char * matrix = (const char *) weights->data + expert * layout.n_bytes();
            for (int64_t i = begin; i < end; i += layout.kernel.height) {
                unpack_group(layout, matrix, i, work.own, weights->nb[1]);
                for (int64_t r = start(work, expert); r < start(work, expert + 1); ++r) {
                    for (int64_t k = 0; k < std::min<int64_t>(layout.kernel.height, layout.n_out - i); ++k) {
                        traits->vec_dot((int) layout.n_k, route(work, r).out + i + k, 0, work.own + k * weights->nb[1], 0,
                            work.x + r * n_row, 0, 1);
                    }
                }
            }
        });
    }
};

// Rows of a table: a model may read its output matrix so.
void get_rows(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor * table = dst->src[0], * ids = dst->src[1];
    const Layout layout(kernel_of(table), table);
    const int64_t height = layout.kernel.height;
    char * rows = (char *) params->wdata + (size_t) params->ith * height * table->nb[1];
    for (int64_t k = params->ith; k < ggml_nelements(ids); k += params->nth) {
        const int64_t k0 = k % ids->ne[0], k1 = k / ids->ne[0] % ids->ne[1], k2 = k / ids->ne[0] / ids->ne[1];
        const int32_t id = *(const int32_t *) ((const char *) ids->data + k0 * ids->nb[0] + k1 * ids->nb[1] + k2 * ids->nb[2]);
        GGML_ASSERT(id >= 0 && id < table->ne[1]);
        unpack_group(layout, (const char *) table->data, id / height * height, rows, table->nb[1]);
        float * out = (float *) ((char *) dst->data + k0 * dst->nb[1] + k1 * dst->nb[2] + k2 * dst->nb[3]);
        ggml_get_type_traits(table->type)->to_float(rows + id % height * table->nb[1], out, layout.n_k);
    }
}

class Traits : public ggml::cpu::tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = op->op == GGML_OP_GET_ROWS ? (size_t) n_threads * kernel_of(op->src[0]).height * op->src[0]->nb[1]
                                          : Product{ nullptr, op }.n_bytes(n_threads);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op == GGML_OP_GET_ROWS) {
            get_rows(params, op);
        } else if (is_stock(params) || params->use_ref) {
            Product{ params, op }.compute_stock();
        } else {
            Product{ params, op }.compute();
        }
        return true;
    }
};

bool is_product(const ggml_tensor * op) {
    return op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID;
}

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
            return !is_question && weights->ne[2] == 1 && from->type == GGML_TYPE_I32 && op->type == GGML_TYPE_F32;
        }
        return is_product(op) && (weights->ne[2] == 1 || op->op == GGML_OP_MUL_MAT_ID) &&
            !(is_question && (t_is_off || pyllama_spec_has_stock_kernels())) && from->type == GGML_TYPE_F32 &&
            from->nb[0] == sizeof(float) && (!from->buffer || ggml_backend_buft_is_host(from->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static Traits traits;
        const ggml_tensor * weights = is_product(op) || op->op == GGML_OP_GET_ROWS ? op->src[0] : nullptr;
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
        out.iface.get_alloc_size = pyllama_spec::alloc_size;
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
