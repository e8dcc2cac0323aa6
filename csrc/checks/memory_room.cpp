#include "checks/memory_room.h"

#include "base/guard.h"
#include "checks/llama-spec-bounds.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#ifdef _WIN32
#include <windows.h>
#else
#include <unistd.h>
#endif

namespace llama_spec {

namespace {

constexpr uint64_t NO_LIMIT   = std::numeric_limits<uint64_t>::max();
constexpr uint64_t CELL_BYTES = 48;  // llama_kv_cells: a position, its shift, two coordinates, a bit per sequence

std::atomic<uint64_t> g_limit{ 0 };
thread_local uint64_t t_n_counted = 0;

// Reads a file with one number; NO_LIMIT for "max" or a missing file.
uint64_t number_in(const std::string & path) {
    std::ifstream file(path);
    uint64_t n = 0;
    return file >> n ? n : NO_LIMIT;
}

// Reads the number after a name in lines of "name number"; 0 if there is none.
uint64_t number_of(const std::string & path, const char * name) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string word;
        uint64_t n = 0;
        if (words >> word >> n && word == name) {
            return n;
        }
    }
    return 0;
}

// The free memory of one control group (version 2). Cached file pages, including mapped weights, can be evicted, so
// they count as free.
uint64_t left_in_group(const std::string & folder) {
    const uint64_t limit = number_in(folder + "/memory.max");
    if (limit == NO_LIMIT) {
        return NO_LIMIT;
    }
    const std::string stat = folder + "/memory.stat";
    const uint64_t files = number_of(stat, "inactive_file") + number_of(stat, "active_file");
    const uint64_t used = number_in(folder + "/memory.current");
    const uint64_t held = used == NO_LIMIT ? 0 : used - std::min(files, used);
    return limit - std::min(held, limit);
}

// Inside a container the group's own folder is the root; elsewhere each parent folder may have a limit as well.
uint64_t left_in_groups() {
    const std::string root = "/sys/fs/cgroup";
    uint64_t left = left_in_group(root);
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("0::/", 0) != 0) {
            continue;
        }
        for (std::string path = line.substr(3); path.size() > 1; path.resize(path.find_last_of('/'))) {
            left = std::min(left, left_in_group(root + path));
        }
    }
    return left;
}

uint64_t free_in_machine() {
    const uint64_t n_kib = number_of("/proc/meminfo", "MemAvailable:");
    if (n_kib > 0) {
        return n_kib * 1024;
    }
#ifdef _WIN32
    MEMORYSTATUSEX status = {};
    status.dwLength = sizeof(status);
    return GlobalMemoryStatusEx(&status) ? status.ullAvailPhys : NO_LIMIT;
#else
    const long n_pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    return n_pages > 0 && page > 0 ? (uint64_t) n_pages * (uint64_t) page : NO_LIMIT;
#endif
}

std::string in_gb(uint64_t n_bytes) {
    char text[32];
    std::snprintf(text, sizeof(text), n_bytes < 10000000 ? "%.4f" : "%.1f", (double) n_bytes / 1e9);
    return text;
}

// A limit counts this context's earlier buffers; the free memory already excludes them.
uint64_t room_left() {
    const uint64_t limit = g_limit.load();
    return limit == 0 ? std::min(free_in_machine(), left_in_groups()) : limit - std::min(limit, t_n_counted);
}

} // namespace

void begin_counting_memory() {
    t_n_counted = 0;
}

void check_cells(uint32_t n_ctx, uint64_t key_bytes) {
    const uint64_t need = (uint64_t) n_ctx * (CELL_BYTES + key_bytes), room = room_left();
    if (key_bytes > 0 && need > room) {
        throw no_room{ "the memory of past tokens needs more than " + in_gb(need) + " GB, and " + in_gb(room) + " GB are free; choose a "
                "smaller `n_ctx`, `n_seq_max` or `n_rs_seq`, or another KV type" };
    }
}

bool has_room(uint64_t n_bytes) {
    return n_bytes <= room_left();
}

void limit_memory(uint64_t n_bytes) {
    g_limit.store(n_bytes);
}

} // namespace llama_spec

using namespace llama_spec;

void llama_spec_before_memory(ggml_context * tensors, ggml_backend_buffer_type_t type) {
    if (!ggml_backend_buft_is_host(type)) {
        return;
    }
    const uint64_t need = ggml_backend_alloc_ctx_tensors_from_buft_size(tensors, type);
    const uint64_t room = room_left();
    if (need > room) {
        throw no_room{ "the memory of past tokens needs " + in_gb(need) + " GB, and " + in_gb(room) + " GB are free; choose a smaller "
                "`n_ctx`, `n_seq_max` or `n_rs_seq`, or another KV type" };
    }
    t_n_counted += need;
}
