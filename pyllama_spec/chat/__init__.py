"""Chats: from messages to a prompt's token ids, and from an answer to its text and tool calls.

Messages (messages), templates (template), which characters of a rendered chat are the caller's
(prompt_provenance) and how these are kept from being control tokens (control_tokens), tools
(tools), prompts of other kinds (prompts, prompt_file).
Nothing here computes a token: requests/ does.
"""
