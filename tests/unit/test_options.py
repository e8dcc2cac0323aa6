"""An option that is written once is in each face: a made-up one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from pyllama_spec.cli.options import add_options, given
from pyllama_spec.cli.wording import Parser
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.options import names_of, option, options_of
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.server.model_list import _KEYS
from pyllama_spec.server.programs import flags_of, read
from pyllama_spec.server.shapes import with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUp(RequestOptions):
    """Requests with one more option."""

    wobble: float | None = option(
        0.5, low=0, high=1, cli="-w --wobble", help="how far a token may roll", group="sampling",
        server="--wobble --roll", variable="ARG_WOBBLE", body="wobble wobbling",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class MadeUpOpening(OpenOptions):
    """Llama() with one more keyword."""

    wobbles: int = option(3, low=1, part="model.n_wobbles", words={"all": -1}, server="--wobbles")


def test_a_request_has_it_checked() -> None:
    made: Any = MadeUp.from_keywords({"wobble": None})
    assert MadeUp().wobble == made.wobble == 0.5
    with pytest.raises(ArgumentError) as caught:
        MadeUp(wobble=1.5)
    assert caught.value.param == "wobble"


def test_a_command_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="made")
    add_options(parser, MadeUp, "sampling")
    args = parser.parse_args(["--wobble", "0.25"])
    assert given(args, options_of(MadeUp))["wobble"] == 0.25
    assert args.options["wobble"] == names_of("cli", MadeUp)["wobble"] == "--wobble"
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "how far a token may roll [0.5]" in capsys.readouterr().out


def test_the_flags_and_variables_of_llama_server_have_it() -> None:
    flags = flags_of(MadeUp, MadeUpOpening)
    set_, around = read(["--roll", "0.1", "--wobbles", "all"], {"LLAMA_ARG_WOBBLE": "0.2"}, flags)
    assert set_.values == {"wobble": 0.1, "wobbles": -1}
    assert (around.values, around.names) == ({"wobble": 0.2}, {"wobble": "LLAMA_ARG_WOBBLE"})


def test_a_body_has_it() -> None:
    @with_options(MadeUp, of_chats=False)
    class Body(msgspec.Struct, kw_only=True):
        prompt: str

    for name in ("wobble", "wobbling"):
        body = msgspec.json.decode(f'{{"prompt": "a", "{name}": 0.5}}', type=Body)
        assert msgspec.structs.asdict(body)[name] == 0.5
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode('{"prompt": "a", "wobble": "far"}', type=Body)


def test_the_engine_gets_it_and_a_file_of_models_may_hold_it() -> None:
    opened = MadeUpOpening("m.gguf", wobbles=4)
    assert opened.arguments("model")["n_wobbles"] == 4
    with pytest.raises(ArgumentError):
        MadeUpOpening("m.gguf", wobbles=0).check()
    in_files = {name for name, one in options_of(OpenOptions).items() if one.in_files}
    assert in_files <= {*_KEYS}
