# The engine's own server code for chats: templates, tools, reasoning, JSON schemas as grammars. We use a few functions
# of common.cpp and sampling.cpp; the linker drops the rest, and whatever only the rest needs.
include("${ENGINE_DIR}/common/parsers/sources.cmake")
set(CHAT_SOURCES ${LLAMA_CHAT_PARSERS_SOURCES})
foreach (NAME chat-auto-parser-generator chat-auto-parser-helpers chat-diff-analyzer chat-peg-parser chat peg-parser
              common sampling trie unicode json json-schema json-schema-to-grammar
              jinja/lexer jinja/parser jinja/runtime jinja/value jinja/string jinja/caps)
    list(APPEND CHAT_SOURCES "${ENGINE_DIR}/common/${NAME}.cpp")
endforeach()
add_library(spec_chat STATIC EXCLUDE_FROM_ALL ${CHAT_SOURCES})
target_compile_features(spec_chat PRIVATE cxx_std_17)
target_include_directories(spec_chat PUBLIC "${ENGINE_DIR}/common" "${ENGINE_DIR}/vendor")
target_include_directories(spec_chat PRIVATE "${SPEC_DIR}")
target_link_libraries(spec_chat PUBLIC llama)
if (NOT MSVC)
    target_compile_options(spec_chat PRIVATE -ffunction-sections -fdata-sections)
endif()
