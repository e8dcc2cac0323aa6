// The engine reads JSON, schemas, templates and answers with recursive functions: unlimited nesting would overflow the
// stack, which ends the process.
#pragma once

namespace llama_spec {

// Throws failure(LLAMA_SPEC_ARGUMENT) if more than 200 brackets are open at once. Real tools and schemas have less than
// a tenth of that. A level takes one or two kilobytes of the engine's eight-megabyte stack.
void check_nesting(const char * text, const char * what);
// The same of JSON, whose strings may hold any number of brackets: a user's text has them.
void check_json_nesting(const char * text, const char * what);

} // namespace llama_spec
