"""Requests: from a prompt's token ids and options to text, one at a time or many side by side.

What a caller may ask (options), a request on its way (job), who computes it (runner: one at a time
in the caller's thread; parallel: many in a thread of their own), whose turn it is (request_lock),
what the caller reads (generation), tokens to text (detokenizer), guided sampling and
log-probabilities. Nothing here knows a message or a template: chat/ makes the prompts.
"""
