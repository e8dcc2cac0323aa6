// Call sites that vendor/patches/ puts into the engine, for what this folder bounds. Files of the engine that know
// nothing of graphs include this alone; all others get it with hooks/llama-spec-hooks.h.
#pragma once

struct ggml_backend_buffer_type;
struct ggml_context;

// The engine is about to allocate, and clear, a memory of past tokens: throws llama_spec::no_room where the host has
// not enough. Logic: memory_room.cpp.
void llama_spec_before_memory(ggml_context * tensors, ggml_backend_buffer_type * type);

// ---- work_limit.cpp

// A step of a loop whose length a text, a grammar or a vocabulary decides: throws once there were too many.
void llama_spec_on_step();
// Some megabytes of a tensor are about to be read and quantised: throws where who waits for it wants to stop.
void llama_spec_on_slab();
// A statement of a template, or a value within a value: throws once there were too many, or they are nested too deeply.
void llama_spec_on_statement();
