"""Requests: from prompt ids and options to text, one at a time or many in parallel.

What was asked, what runs and what it gave (run), its options (options), the queue and the
computation (runner), the handle (stream), guided and processed sampling with log-probabilities
(samplers). Nothing here knows a message or a template: chat/ makes the prompts.
"""
