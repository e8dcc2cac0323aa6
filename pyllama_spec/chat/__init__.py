"""Chats: from messages to a prompt's token ids, and from an answer to its text and tool calls.

Messages and templates (template), which characters of a rendered chat are the caller's and how
these are kept from being control tokens (prompt_provenance), tools (tools, answers), prompts of
other kinds (prompts, prompt_file).
Nothing here computes a token: requests/ does.
"""
