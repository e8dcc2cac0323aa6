// Call sites that vendor/patches/ adds to the engine for the limits in this folder. The engine's files without graph
// types include only this header; all others get it through hooks/llama-spec-hooks.h.
#pragma once

struct ggml_backend_buffer_type;
struct ggml_context;

// Called before the engine allocates and clears a memory of past tokens. Throws llama_spec::no_room if the host has too
// little memory. Implemented in memory_room.cpp.
void llama_spec_before_memory(ggml_context * tensors, ggml_backend_buffer_type * type);

// ---- work_limit.cpp

// Counts a step of a loop whose length depends on a text, a grammar or a vocabulary; throws after too many.
void llama_spec_on_step();
// Called before the engine reads and quantises some megabytes of a tensor; throws if the waiting caller wants to stop.
void llama_spec_on_slab();
// Counts a statement of a template, or a nested value; throws after too many, or if they are nested too deeply.
void llama_spec_on_statement();
