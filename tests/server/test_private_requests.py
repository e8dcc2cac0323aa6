"""The sources of a server request's drafts, and the parts of its text that are stored."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.drafters import Committed, Draft, Drafter, DraftRequest, LookupFirst
from pyllama_spec.llama_cpp import LlamaRAMCache
from pyllama_spec.server.prefix_folder import PrefixFolder
from tests.faces.tools import open_tiny
from tests.server.world import TEXT, Client, served

PROMPT = "abcdefghijklmnopqrstuvw"
KEYS = ("first-key", "second-key")
SAYS: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
ASKED = [{"role": "user", "content": "Which words are in the book on the table?"}]
# A body of each endpoint that generates a text.
BODIES: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": PROMPT, **SAYS},
    "/v1/chat/completions": {"messages": ASKED, **SAYS},
    "/v1/messages": {"messages": ASKED, "model": "any", **SAYS},
    "/v1/responses": {"input": ASKED, "temperature": 0, "max_output_tokens": 40},
    "/completion": {"prompt": PROMPT, "temperature": 0, "n_predict": 40},
}


def n_accepted(client: Client) -> int:
    answer = client.right(TEXT, {"prompt": PROMPT, **SAYS})
    return int(answer["speculation"]["accepted"])


def changes_place(client: Client) -> None:
    """Another request takes the sequence, so that what it held before counts as an earlier text."""
    client.right(TEXT, {"prompt": "0123456789", "max_tokens": 2, "remember": False})


def test_nobody_is_drafted_from_the_text_of_another_key() -> None:
    with served(open_tiny("suffix"), api_keys=KEYS) as client:
        counts = []
        for client.key in KEYS:
            counts.append(n_accepted(client))
            changes_place(client)
        assert counts[0] == counts[1]
        # Who asks again has his own text.
        assert n_accepted(client) > counts[1] + 15


class Saved(Drafter):
    """A head that can save what it knows: nothing."""

    name, max_draft = "saved", 8

    def propose_one(self, request: DraftRequest) -> Draft:
        return Draft([])

    def save(self, seq: int) -> bytes:
        return b""

    def restore(self, seq: int, data: bytes) -> int:
        return 10**6


def test_a_state_of_one_user_is_not_drafted_from_for_another() -> None:
    """Who asked last on the sequence where it is restored has not written that text."""
    drafter, secret = LookupFirst(Saved()), random.Random(1).choices(range(97, 123), k=60)
    with open_tiny(drafter) as llm:
        llm.set_cache(LlamaRAMCache())
        for user, prompt in (("a", secret), ("c", [98] * 20), ("b", secret[:20]), ("c", [99] * 20)):
            llm.create_completion(prompt, max_tokens=2, user=user)
        for user, n in (("a", 4), ("c", 0)):
            drafter.begin_request(0, remember=False, user=user)
            drafter.truncate(0, 0)
            drafter.commit([Committed(0, secret[:40], 0)])
            [draft] = drafter.propose([DraftRequest(0, secret[:40], 4)])
            assert list(draft.ids) == secret[40 : 40 + n]


@pytest.mark.parametrize("path", BODIES)
def test_what_is_not_to_be_remembered_is_not_written(tmp_path: Path, path: str) -> None:
    store = tmp_path / "store.memory"
    with served(open_tiny("suffix", draft_memory=store, n_ctx=512)) as client:
        before = store.read_bytes()
        client.right(path, {**BODIES[path], "remember": False})
        assert store.read_bytes() == before
        client.right(path, BODIES[path])
    assert store.read_bytes() != before


@pytest.mark.parametrize("remember", [False, True])
def test_a_folder_of_states_has_none_of_a_private_request(tmp_path: Path, remember: bool) -> None:
    llm = open_tiny("prompt-lookup")
    cache = PrefixFolder(tmp_path, 1 << 26, 16)
    llm.set_cache(cache)
    with served(llm) as client:
        client.right(TEXT, {**BODIES[TEXT], "remember": remember})
    cache.close()
    assert bool(list(tmp_path.iterdir())) == remember
