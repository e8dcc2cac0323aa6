// The kinds of drafts that this version knows, by their files' architecture.

#include "drafts/draft_kind.h"

#include "llama-arch.h"
#include "llama-model.h"

namespace llama_spec {

// The architecture of each kind, and the function that returns it: a new kind needs one line here.
#define DRAFT_KINDS(KIND) \
    KIND(LLM_ARCH_EAGLE3, eagle3_kind) \
    KIND(LLM_ARCH_DFLASH, dflash_kind)

#define DECLARE(arch, kind) const draft_kind & kind();
DRAFT_KINDS(DECLARE)
#undef DECLARE

namespace {

#define ENTRY(arch, kind) { arch, kind },
const struct { llm_arch arch; const draft_kind & (*kind)(); } KINDS[] = { DRAFT_KINDS(ENTRY) };
#undef ENTRY

} // namespace

const draft_kind * find_draft_kind(const llama_model * model) {
    for (const auto & entry : KINDS) {
        if (entry.arch == model->arch) {
            return &entry.kind();
        }
    }
    return nullptr;
}

std::string draft_kind_names() {
    std::string names;
    for (const auto & entry : KINDS) {
        names += (names.empty() ? "" : ", ") + std::string(entry.kind().name());
    }
    return names;
}

} // namespace llama_spec
