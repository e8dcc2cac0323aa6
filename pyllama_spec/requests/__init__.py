"""Requests: from a prompt's token ids and options to text, one at a time or many side by side.

What a caller may ask (options), its handle (generation), a request on its way (job), what a runner
notes of it (ticket), whose turn it is (line), who computes it (runner), tokens to text
(detokenizer), guided sampling and log-probabilities; and the turns of contexts that have no line
(request_lock). Nothing here knows a message or a template: chat/ makes the prompts.
"""
