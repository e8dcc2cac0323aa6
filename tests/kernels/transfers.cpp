// What is counted of a product on a device, which here is the processor under another name: its buffers are not the
// host's to the engine. Prints a line for each of the counters.
#include "transfers/transfers.h"

#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

ggml_backend_dev_t the_device();

void * data_of(ggml_backend_buffer_t buffer) { return buffer->context; }

ggml_backend_buffer_t allocated(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_i calls = {};
    calls.free_buffer = [](ggml_backend_buffer_t buffer) { std::free(buffer->context); };
    calls.get_base    = data_of;
    calls.set_tensor  = [](ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t at, size_t n) {
        std::memcpy((char *) t->data + at, data, n);
    };
    calls.get_tensor  = [](ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t at, size_t n) {
        std::memcpy(data, (const char *) t->data + at, n);
    };
    calls.cpy_tensor  = [](ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
        std::memcpy(dst->data, src->data, ggml_nbytes(src));
        return true;
    };
    calls.clear       = [](ggml_backend_buffer_t buffer, uint8_t value) { std::memset(buffer->context, value, buffer->size); };
    return ggml_backend_buffer_init(type, calls, std::aligned_alloc(64, (size + 63) / 64 * 64), size);
}

ggml_backend_buffer_type_t the_memory() {
    static ggml_backend_buffer_type type = {};
    type.iface.get_name      = [](ggml_backend_buffer_type_t) { return "far"; };
    type.iface.alloc_buffer  = allocated;
    type.iface.get_alignment = [](ggml_backend_buffer_type_t) { return size_t(64); };
    type.device = the_device();
    return &type;
}

ggml_backend_dev_t the_device() {
    static ggml_backend_device device = {};
    device.iface.get_name        = [](ggml_backend_dev_t) { return "far"; };
    device.iface.get_type        = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    device.iface.get_buffer_type = [](ggml_backend_dev_t) { return the_memory(); };
    device.iface.supports_op     = [](ggml_backend_dev_t, const ggml_tensor *) { return true; };
    device.iface.supports_buft   = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == the_memory(); };
    return &device;
}

ggml_backend_t the_backend(ggml_backend_t cpu) {
    auto * backend = new ggml_backend{};
    backend->iface.get_name    = [](ggml_backend_t) { return "far"; };
    backend->iface.free        = [](ggml_backend_t self) { delete self; };
    backend->iface.synchronize = [](ggml_backend_t) {};
    backend->iface.get_tensor_async = [](ggml_backend_t, const ggml_tensor * t, void * data, size_t at, size_t n) {
        std::memcpy(data, (const char *) t->data + at, n);
    };
    backend->iface.graph_compute = [](ggml_backend_t self, ggml_cgraph * graph) {
        return ggml_backend_graph_compute((ggml_backend_t) self->context, graph);
    };
    backend->device  = the_device();
    backend->context = cpu;
    return backend;
}

void print(const char * who, const llama_spec::transfers & c) {
    std::printf("%s %llu %llu %llu %llu %llu %llu %llu %llu\n", who, (unsigned long long) c.bytes_to_device,
        (unsigned long long) c.bytes_to_host, (unsigned long long) c.bytes_between, (unsigned long long) c.n_to_device,
        (unsigned long long) c.n_to_host, (unsigned long long) c.n_between, (unsigned long long) c.n_synchronisations,
        (unsigned long long) c.n_graphs);
}

} // namespace

// N_IN N_OUT N_ROWS
int main(int, char ** argv) {
    const int64_t n_in = std::atoi(argv[1]), n_out = std::atoi(argv[2]), n_rows = std::atoi(argv[3]);
    ggml_backend_t cpu = ggml_backend_cpu_init(), far = the_backend(cpu);
    ggml_context * weights = ggml_init({ size_t(1) << 16, nullptr, true }), * made = ggml_init({ size_t(1) << 20, nullptr, true });
    ggml_tensor * w = ggml_new_tensor_2d(weights, GGML_TYPE_F32, n_in, n_out), * other = ggml_dup_tensor(weights, w);
    ggml_backend_buffer_t there = ggml_backend_alloc_ctx_tensors_from_buft(weights, the_memory());
    ggml_backend_buffer_set_usage(there, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    const std::vector<float> ones((size_t) (n_in * (n_out + n_rows)), 1.0f);
    std::vector<float> result((size_t) (n_out * n_rows));

    ggml_tensor * x = ggml_new_tensor_2d(made, GGML_TYPE_F32, n_in, n_rows);
    ggml_set_input(x);
    ggml_tensor * y = ggml_mul_mat(made, w, x);
    ggml_set_output(y);
    ggml_cgraph * graph = ggml_new_graph(made);
    ggml_build_forward_expand(graph, y);
    ggml_backend_t backends[] = { far, cpu };
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, nullptr, 2, 64, false, false);
    // Nobody counts what a model is loaded with.
    ggml_backend_tensor_set(w, ones.data(), 0, ggml_nbytes(w));
    ggml_backend_sched_alloc_graph(sched, graph);

    llama_spec::transfers whole, target, draft;
    for (llama_spec::transfers * own : { &target, &target, &draft }) {
        llama_spec::count_transfers counting(*own, whole);
        ggml_backend_tensor_set(x, ones.data(), 0, ggml_nbytes(x));     // an input of the graph: the host's
        ggml_backend_sched_graph_compute_async(sched, graph);
        ggml_backend_tensor_get_async(far, y, result.data(), 0, ggml_nbytes(y));
        ggml_backend_synchronize(far);
        ggml_backend_synchronize(cpu);
        if (own == &draft) {
            ggml_backend_tensor_copy(w, other);
        }
    }
    ggml_backend_tensor_get(y, result.data(), 0, ggml_nbytes(y));   // nobody's
    print("target", target);
    print("draft", draft);
    print("whole", whole);
    for (float one : result) {
        if (one != (float) n_in) {
            return 1;
        }
    }
    return 0;
}
