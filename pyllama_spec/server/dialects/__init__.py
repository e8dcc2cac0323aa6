"""Translates other chat APIs to OpenAI's chat completions, without HTTP.

Each has two modules: `*_request` converts a request in the dialect to a chat request, and
`*_answer` converts the chat's answer and chunks to answers and events in the dialect.
"""
