"""Requests: from prompt ids and options to text, one at a time or many in parallel.

A caller's options (options), the handle (generation), a running request (job), a runner's
record of it (ticket), the queue (line), the computation (runner), tokens to text
(detokenizer), guided sampling and log-probabilities; and the lock of contexts without a queue
(request_lock). Nothing here knows a message or a template: chat/ makes the prompts.
"""
