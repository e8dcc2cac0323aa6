"""Chats: messages and templates to prompts, and which of a prompt's text is the caller's."""
