// Functions on recurrent states for the C ABI; the call sites in the engine are in llama-spec-hooks.h.
#pragma once

#include <cstdint>

struct llama_memory_i;
class  llama_memory_recurrent;
struct llama_model;

namespace llama_spec {

// Bytes for one sequence over all layers: its recurrent state, the extra bytes of the first snapshot, and the bytes of
// each.
struct state_sizes {
    uint64_t state, snapshot_base, snapshot_token;
};
state_sizes state_sizes_of(const llama_model & model);

// The recurrent part of a memory; NULL if it has none, or if it has another structure (DeepSeek 4).
llama_memory_recurrent * recurrent_part(llama_memory_i * memory);

// Removes positions p0 .. from a sequence, also after an earlier rollback; false if the engine refuses.
bool roll_back(llama_memory_i * memory, llama_memory_recurrent * states, int32_t seq, int32_t p0);

// Call after a sequence was copied.
void copy_depth(llama_memory_recurrent * states, int32_t from, int32_t to);

// For a memory with cells but no states, such as that of an MTP head: gives a copied sequence its own cell, since a
// shared one cannot roll back for one sequence.
void give_own_cell(llama_memory_recurrent & memory, int32_t seq);

// During its lifetime, the memory reports a sequence as it was `back` tokens ago; nothing may be computed meanwhile.
class earlier_state {
public:
    earlier_state(llama_memory_recurrent * states, int32_t seq, int32_t back) : states(states), seq(seq), back(back) { shift(1); }
    ~earlier_state() { shift(-1); }
    earlier_state(const earlier_state &) = delete;
    earlier_state & operator=(const earlier_state &) = delete;

private:
    void shift(int32_t direction);
    llama_memory_recurrent * states;
    int32_t seq, back;
};

} // namespace llama_spec
