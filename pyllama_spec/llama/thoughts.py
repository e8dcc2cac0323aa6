"""Thoughts before an answer: their tags in a template, and their token budget.

An exhausted budget forces the tokens that end a thought. They are the template's own, as
the engine reads them out of it; a template that marks no thoughts has none to bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyllama_spec.engine import ChatParser, Model, Vocab
from pyllama_spec.engine.chat import ends_in_thought
from pyllama_spec.engine.checks import one_of
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama.overridable import Overridable
from pyllama_spec.requests.options import EFFORTS, OF_CHATS, RequestOptions

# Tokens of thought for an effort that a template does not read. LiteLLM's defaults.
_BUDGETS = {"none": 0, "minimal": 128, "low": 1024, "medium": 2048, "high": 4096}
# What templates read to leave thoughts out.
_SWITCHES = ("enable_thinking", "thinking")


class ThoughtTags:
    """The tags of thoughts in a model's answers."""

    def __init__(self, model: Model) -> None:
        self._model = model
        # By the text of a template: reading one takes a while.
        # An error is kept as its words: an exception would keep its callers alive, the Llama too.
        self._known: dict[str, tuple[str, ...] | str] = {}

    def of_text(
        self, llm: Overridable, tokens: Sequence[int], request: RequestOptions
    ) -> RequestOptions:
        """The options of a text, with the tags for a budget."""
        for name in OF_CHATS:
            if getattr(request, name) is not None:
                raise ArgumentError(
                    name, getattr(request, name), problem="applies to chats only",
                    remedy="pass it to create_chat_completion(), or leave it out",
                )  # fmt: skip
        if request.thinking_token_budget is None or request.thought_close:
            return request
        tags = self.of_template(llm.template.source)
        text = self._model.vocab.detokenize(tokens, special=True).decode(errors="replace")
        return self._bounded(request, tags, text, own_grammar=True)

    def of_chat(
        self,
        llm: Overridable,
        request: RequestOptions,
        unread: str | None,
        *,
        answer: str,
        own_grammar: bool,
    ) -> RequestOptions:
        """The options of a chat, with the tags for a budget."""
        if unread is None and request.thinking_token_budget is None:
            return request
        tags = self.of_template(llm.template.source)
        if unread is not None and not tags:
            if unread == "none":
                return replace(request, response_format=None, thinking_token_budget=None)
            raise UnsupportedError(
                "is not for this model: its chat template marks no thoughts and reads no effort",
                param="reasoning_effort",
                value=unread,
                remedy="leave it out",
            )
        if request.thinking_token_budget is None:
            return request
        return self._bounded(request, tags, answer, own_grammar=own_grammar)

    def _bounded(
        self, request: RequestOptions, tags: Sequence[str], before: str, *, own_grammar: bool
    ) -> RequestOptions:
        """The options with a budget and its tags, behind the text `before`.

        own_grammar: the request's grammar is for the answer alone, without thoughts.
        """
        if not tags:
            raise UnsupportedError(
                "is not for this model: its chat template marks no thoughts",
                param="thinking_token_budget",
                value=request.thinking_token_budget,
                remedy="leave it out, or set `max_tokens`",
            )
        return replace(
            request, response_format=None, max_completion_tokens=None, thought_tags=tuple(tags),
            thought_is_open=ends_in_thought(before, tags),
            thought_close=_close(self._model.vocab, tags[1]),
            grammar_skips_thoughts=own_grammar and request.grammar is not None,
        )  # fmt: skip

    def of_template(self, source: str) -> tuple[str, ...]:
        """The thought tags of a template; () if it has none.

        The first call for a template takes a while.
        """
        if source not in self._known:
            try:
                with ChatParser(self._model, source) as parser:
                    session = parser.begin({"messages": [{"role": "user", "content": "."}]})
                self._known[source] = session.thought_tags
            except ArgumentError as error:  # as it would be each time
                self._known[source] = str(error)
        known = self._known[source]
        if isinstance(known, str):
            raise ArgumentError(problem=known)
        return known


def _close(vocab: Vocab, end: str) -> tuple[int, ...]:
    """The ids of the tag that ends a thought.

    Some vocabularies put a space before a first control token, which is not part of the tag.
    """
    ids = vocab.tokenize(end, add_special=False, parse_special=True)
    if len(ids) > 1 and vocab.piece(ids[0], special=True).isspace() and not end[0].isspace():
        ids = ids[1:]
    return tuple(ids)


def with_effort(
    keywords: Mapping[str, Any], variables: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """A chat's options and template variables with the effect of reasoning_effort.

    The caller's own budget, and variable for the effort, take precedence. The effort comes third
    where the template has no variable for it.
    """
    keywords, variables = dict(keywords), dict(variables)
    effort = keywords.pop("reasoning_effort", None)
    one_of(effort, (None, *EFFORTS), "reasoning_effort")
    if effort is None:
        return keywords, variables, None
    is_read = _reads(source, "reasoning_effort")
    if is_read:
        variables.setdefault("reasoning_effort", effort)
    switch = next((name for name in _SWITCHES if _reads(source, name)), None)
    if effort == "none" and switch is not None:
        variables.setdefault(switch, False)
        is_read = True
    elif not is_read and keywords.get("thinking_token_budget") is None:
        keywords["thinking_token_budget"] = _BUDGETS.get(effort)
    return keywords, variables, None if is_read else effort


def _reads(source: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", source) is not None
