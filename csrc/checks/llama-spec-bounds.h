// Bounds of what templates and texts make the engine do, for its files that know nothing of graphs: checks/work_limit.cpp.
#pragma once

// A statement of a template, or a value within a value: throws once there were too many, or they are nested too deeply.
void llama_spec_on_statement();
