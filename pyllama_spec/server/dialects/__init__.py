"""Translates other chat APIs to OpenAI's chat completions, without HTTP.

Each has two modules: `*_request` makes a chat request of a request in the dialect, `*_answer` makes
answers and events in the dialect of the chat's answer and chunks.
"""
