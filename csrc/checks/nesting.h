// The engine reads JSON, schemas, templates and answers with functions that call themselves: what is nested without end
// would leave the stack, which ends the process.
#pragma once

namespace llama_spec {

// Throws failure(LLAMA_SPEC_ARGUMENT) where more than 200 brackets are open at once: no tool or schema of people has a
// tenth of that, and a level takes the engine's parsers a kilobyte or two of a stack of eight megabytes.
void check_nesting(const char * text, const char * what);

} // namespace llama_spec
