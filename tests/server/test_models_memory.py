"""Several models within a memory bound: estimates, real sizes, and closing for room.

The test holds loads up, so that no assertion depends on a clock.
"""

from __future__ import annotations

from pyllama_spec import Llama
from tests.models import model_path
from tests.server.models_world import (
    Asking,
    asked,
    keywords,
    own_text,
    several,
    spec,
    states,
    text_of,
)
from tests.server.world import Endless, until


def test_what_was_not_used_for_longest_makes_room() -> None:
    with several(spec("a"), spec("b"), spec("c"), max_loaded=2) as (client, models):
        for name in ("a", "b", "a", "c"):
            assert text_of(asked(client, name)) == own_text(name)
        assert states(client) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        assert models.made[1].llm.model.is_closed
        assert text_of(asked(client, "b")) == own_text("b")
        assert models.begun == ["a", "b", "c", "b"]
        assert states(client)["a"] == "unloaded"


def test_a_model_in_use_is_never_closed() -> None:
    with several(spec("a"), spec("b"), max_loaded=1) as (client, models):
        text = Endless(client, model="a")
        waiting = Asking(client, "b")
        until(lambda: models.named("b").n_waiting == 1)
        for _ in range(20):
            next(text.events)  # it goes on meanwhile
        assert models.begun == ["a"]
        assert models.named("a").service is not None
        text.close()
        assert text_of(waiting.result()) == own_text("b")
        assert states(client) == {"a": "unloaded", "b": "loaded"}


def test_bytes_of_weights_and_past_tokens_and_drafts_are_the_bound() -> None:
    draft = {"draft": str(model_path("llama", seed=3)), "n_ctx": 4096}
    with Llama(**keywords("a")) as plain, Llama(**keywords("a", **draft)) as drafted:
        of_a, with_draft = plain.memory_bytes, drafted.memory_bytes
        assert of_a == plain.model.info.size_bytes + plain.context.memory_bytes
        past = drafted.context.memory_bytes  # of a draft some tokens more
        twice = 2 * (drafted.model.info.size_bytes + past)
        assert twice <= with_draft < twice + past // 4
        # A file has its keys too, which count before it was ever loaded.
        keys = model_path("llama", seed=0).stat().st_size - plain.model.info.size_bytes
    cache = {"prefix_cache_bytes": 1000}
    specs = (spec("a", cache), spec("b", cache), spec("c", {**cache, **draft}))
    both = 2 * (of_a + 1000)
    for bytes_, kept in ((both + keys, ["a", "b"]), (both - 1, ["b"])):
        with several(*specs, memory_bytes=bytes_) as (client, models):
            assert [asked(client, name)[0] for name in ("a", "b")] == [200, 200]
            assert models.named("b").n_bytes == of_a + 1000
            assert [name for name, state in states(client).items() if state == "loaded"] == kept
    # Its draft's past tokens are seen when it is loaded; then it is known not to fit.
    with several(*specs, memory_bytes=with_draft + 999) as (client, models):
        assert asked(client, "a")[0] == 200
        for _ in range(2):
            models.named("c").failure = None
            assert asked(client, "c")[0] == 500
        assert models.begun == ["a", "c"]
        assert models.made[-1].llm.model.is_closed
        assert text_of(asked(client, "a")) == own_text("a")
    with several(*specs, memory_bytes=with_draft + 1000) as (client, models):
        assert [asked(client, name)[0] for name in "abc"] == [200] * 3
        assert states(client) == {"a": "unloaded", "b": "unloaded", "c": "loaded"}


def test_keep_alive_closes_what_nobody_asks_for() -> None:
    with several(spec("a", keep_alive_s=0), spec("b")) as (client, models):
        for _ in range(2):
            assert asked(client, "a")[0] == asked(client, "b")[0] == 200
            until(lambda: models.named("a").state == "unloaded")
            assert models.named("b").state == "loaded"
        assert models.begun == ["a", "b", "a"]
        text = Endless(client, model="a")
        assert asked(client, "a")[0] == 200  # whose end closes nothing: another one is there
        assert models.named("a").service is not None
        text.close()
        until(lambda: models.named("a").state == "unloaded")
