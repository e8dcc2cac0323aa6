// Keeps graphs by the shape of their batch. The engine keeps only one: a batch of a different width builds, splits and
// allocates its graph again, which takes a tenth of a plain round on a small model. The width of verify batches changes
// with every draft, and a draft model alternates between feeding and drafting. So each shape of a small batch has its
// own entry: the engine's scheduler, results and active graph are exchanged for the entry's. The engine still decides
// itself whether that graph can be reused (llm_graph_result::can_reuse).

#include "hooks/llama-spec-hooks.h"

#include "llama-batch.h"
#include "llama-graph.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <list>
#include <tuple>
#include <utility>

namespace {

// Wider batches are parts of prompts, where building a graph costs little; also the maximum width of a verify batch.
constexpr uint32_t MAX_TOKENS = 32;
// One for plain decoding, and one for each draft length up to eight tokens, the longest default.
constexpr size_t MAX_PLACES = 9;

// The total buffer size of all entries is limited to that of the engine's own buffers, which hold the graph of a
// prompt, or to this minimum if parts of prompts are small.
constexpr size_t MIN_BYTES = 64u << 20;

// Tokens, outputs, sequences, the first sequence, whether there are ids and rows, and the graph's type. The engine
// compares everything else that a reused graph needs.
using shape = std::tuple<uint32_t, uint32_t, uint32_t, int32_t, bool, bool, int>;

struct place {
    shape  key;
    ggml_backend_sched_ptr sched;
    std::array<llm_graph_result_ptr, 2> results;
    llm_graph_result * active = nullptr;
};

void exchange(place & p, const llama_spec_graph_slot & slot) {
    std::swap(p.sched, slot.sched);
    std::swap(p.results, slot.results);
    std::swap(p.active, slot.active);
}

size_t n_bytes(const ggml_backend_sched_ptr & sched, const std::vector<ggml_backend_t> & backends) {
    size_t sum = 0;
    for (ggml_backend_t backend : backends) {
        sum += ggml_backend_sched_get_buffer_size(sched.get(), backend);
    }
    return sum;
}

// On a GPU only one graph is kept, as in the engine: buffers are scarce there, and more graphs were not measured. A
// server of layers keeps the graphs that it received: a repeated graph sends only its number, any other one sends every
// tensor.
bool can_keep(const std::vector<ggml_backend_t> & backends) {
    return std::all_of(backends.begin(), backends.end(), [](ggml_backend_t backend) {
        ggml_backend_dev_t dev = ggml_backend_get_device(backend);
        return ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU ||
            std::strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev)), "RPC") == 0;
    });
}

} // namespace

struct llama_spec_graphs {
    // Most recently used first. While an entry is in use, it holds the engine's own objects, for wide batches.
    std::list<place> places;
    bool is_in_use = false;     // whether the first entry is in use
    size_t n_bytes_most = MIN_BYTES;

    void leave(const llama_spec_graph_slot & slot) {
        if (is_in_use) {
            exchange(places.front(), slot);
            is_in_use = false;
        }
    }

    // Says whether one more entry fits the limits.
    bool has_room(const std::vector<ggml_backend_t> & backends) const {
        size_t sum = 0;
        for (const place & p : places) {
            sum += n_bytes(p.sched, backends);
        }
        return places.size() < MAX_PLACES && sum < n_bytes_most;
    }
};

void llama_spec_enter_graph(std::shared_ptr<llama_spec_graphs> & graphs, const llama_spec_graph_slot & slot,
                            const std::vector<ggml_backend_t> & backends, const llama_ubatch & ubatch, int32_t n_outputs,
                            int gtype, const std::function<ggml_backend_sched_t()> & make_sched) {
    if (ubatch.n_tokens > MAX_TOKENS || !can_keep(backends)) {
        if (graphs) {
            graphs->leave(slot);
        }
        return;
    }
    if (!graphs) {
        graphs = std::make_shared<llama_spec_graphs>();
    }
    const shape key{ ubatch.n_tokens, (uint32_t) n_outputs, ubatch.n_seqs_unq, ubatch.n_seqs_unq > 0 ? ubatch.seq_id_unq[0] : -1,
                     ubatch.token != nullptr, ubatch.embd != nullptr, gtype };
    auto & places = graphs->places;
    if (graphs->is_in_use && places.front().key == key) {
        return;
    }
    graphs->leave(slot);
    auto found = std::find_if(places.begin(), places.end(), [&](const place & p) { return p.key == key; });
    if (found == places.end()) {
        graphs->n_bytes_most = std::max(n_bytes(slot.sched, backends), MIN_BYTES);
        if (places.empty() || graphs->has_room(backends)) {
            place made;
            made.sched.reset(make_sched());
            places.push_front(std::move(made));
        } else {
            // The least recently used entry takes the new shape, and keeps its buffers.
            places.splice(places.begin(), places, std::prev(places.end()));
        }
        places.front().key    = key;
        places.front().active = nullptr;
    } else {
        places.splice(places.begin(), places, found);
    }
    exchange(places.front(), slot);
    graphs->is_in_use = true;
}

void llama_spec_leave_graphs(std::shared_ptr<llama_spec_graphs> & graphs, const llama_spec_graph_slot & slot) {
    if (graphs) {
        graphs->leave(slot);
        graphs.reset();
    }
}
