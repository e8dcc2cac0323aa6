// What the C ABI needs of recurrent states; the call sites in the engine are in llama-spec-hooks.h.
#pragma once

#include <cstdint>

struct llama_memory_i;
class  llama_memory_recurrent;
struct llama_model;

namespace llama_spec {

// Bytes for one sequence, of all layers: its recurrent state; what the first snapshot adds, and what each one does.
struct state_sizes {
    uint64_t state, snapshot_base, snapshot_token;
};
state_sizes state_sizes_of(const llama_model & model);

// The recurrent part of a memory; NULL where it has none, or one that is built otherwise (DeepSeek 4).
llama_memory_recurrent * recurrent_part(llama_memory_i * memory);

// Takes positions p0 .. back out of a sequence, also behind an earlier rollback; false if the engine refuses.
bool roll_back(llama_memory_i * memory, llama_memory_recurrent * states, int32_t seq, int32_t p0);

// To be called after a sequence was copied.
void copy_depth(llama_memory_recurrent * states, int32_t from, int32_t to);

// Of a memory that has cells and no states, such as that of an MTP head: a sequence that was copied gets a cell of its
// own, since a shared one cannot go back for one of them.
void give_own_cell(llama_memory_recurrent & memory, int32_t seq);

// While it lives, the memory says that a sequence is as it was `back` tokens ago; nothing is computed meanwhile.
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
