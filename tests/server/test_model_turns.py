"""Busy models take turns: one lets others load that wait for its memory.

Turns last no seconds, and only the reader ends a text, so that no test depends on a clock.
"""

from __future__ import annotations

from http.client import HTTPConnection

from tests.server.models_world import Asking, Held, asked, own_text, several, spec, states, text_of
from tests.server.world import TEXT, Endless, until


def is_draining(models: Held, name: str) -> bool:
    """Whether a model takes no new requests, so that another one can load."""
    return models.named(name).draining is not None


def test_a_busy_model_takes_no_new_requests_while_another_waits() -> None:
    with several(spec("a"), spec("b"), max_loaded=1, turn_s=0) as (client, models):
        with Endless(client, model="a"):
            of_b = Asking(client, "b")
            until(lambda: is_draining(models, "a"))
            of_a = [Asking(client, "a") for _ in range(3)]
            until(lambda: models.named("a").n_waiting == 3)
            assert models.begun == ["a"]
            assert states(client) == {"a": "loaded", "b": "loading"}
        assert text_of(of_b.result()) == own_text("b")
        for one in of_a:
            assert text_of(one.result()) == own_text("a")
        assert models.begun == ["a", "b", "a"]
        assert not is_draining(models, "a")


def test_each_in_its_turn_while_clients_of_all_never_pause() -> None:
    """A model answers all requests that waited for its load before it is closed."""
    with several(spec("a"), spec("b"), spec("c"), max_loaded=1, turn_s=0) as (client, models):
        asking = [Asking(client, name) for _ in range(4) for name in ("a", "b", "c")]
        answers = [one.result() for one in asking]
        own = [own_text(name) for name in ("a", "b", "c")]
        assert [text_of(answer) for answer in answers] == own * 4
        # None is loaded for nobody: there are no more loads than requests.
        assert 3 <= len(models.begun) <= 12
        until(lambda: not any(is_draining(models, name) for name in "abc"))


def test_before_its_turn_ends_a_model_goes_on() -> None:
    with several(spec("a"), spec("b"), max_loaded=1, turn_s=1e6) as (client, models):
        with Endless(client, model="a"):
            of_b = Asking(client, "b")
            until(lambda: models.named("b").loading is not None)
            for _ in range(3):
                assert text_of(asked(client, "a")) == own_text("a")
            assert models.begun == ["a"]
        assert text_of(of_b.result()) == own_text("b")


def test_nobody_drains_for_a_request_that_is_given_up() -> None:
    with several(spec("a"), spec("b"), max_loaded=1, turn_s=0) as (client, models):
        with Endless(client, model="a"):
            given_up = HTTPConnection(client.host, client.port)
            body = '{"model": "b", "prompt": "the cat", "max_tokens": 2}'
            given_up.request("POST", TEXT, body, {"Content-Type": "application/json"})
            until(lambda: is_draining(models, "a"))
            of_a = Asking(client, "a")
            until(lambda: models.named("a").n_waiting == 1)
            given_up.close()
            assert text_of(of_a.result()) == own_text("a")
            assert not is_draining(models, "a")
        assert models.begun == ["a"]


def test_no_more_drain_than_needed() -> None:
    """The one that was loaded first makes room enough."""
    specs = (spec("a"), spec("b"), spec("c"))
    with several(*specs, max_loaded=2, turn_s=0) as (client, models):
        with Endless(client, model="a") as of_first, Endless(client, model="b"):
            of_c = Asking(client, "c")
            until(lambda: is_draining(models, "a"))
            assert not is_draining(models, "b")
            assert text_of(asked(client, "b")) == own_text("b")
            of_first.close()
            assert of_c.result()[0] == 200
        assert states(client) == {"a": "unloaded", "b": "loaded", "c": "loaded"}


def test_the_end_comes_to_those_that_wait_for_a_turn() -> None:
    with (
        several(spec("a"), spec("b"), max_loaded=1, turn_s=0) as (client, models),
        Endless(client, model="a"),
    ):
        of_b = Asking(client, "b")
        until(lambda: is_draining(models, "a"))
        of_a = [Asking(client, "a") for _ in range(2)]
        until(lambda: models.named("a").n_waiting == 2)
        client.server.stop()
        status, answer = of_b.result()
        assert (status, answer["error"]["code"]) == (503, "stopping")
        for one in of_a:  # there is nobody to make room for: they are let come to their end
            assert text_of(one.result()) == own_text("a")
