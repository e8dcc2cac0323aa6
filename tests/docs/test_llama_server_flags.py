"""The page about llama-server's flags, and the reader of the engine's source that makes it."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.server.llama_server_flags import BY_NAME, FLAGS, IDLE, REFUSED
from pyllama_spec.server.settings import ServerSettings
from tools.docs import llama_server_flags
from tools.docs.llama_server_source import SOURCE, TheirFlag, their_flags

_LISTS = "std::initializer_list<enum llama_example> some = {LLAMA_EXAMPLE_SERVER};\n"


def test_the_page_is_that_of_the_source_and_the_table() -> None:
    written = llama_server_flags.PAGE.read_text(encoding="utf-8")
    assert written == llama_server_flags.page(), "make docs-pages writes it anew"


def test_the_defaults_that_the_page_names_are_those_of_the_code() -> None:
    page = llama_server_flags.page()
    options = {one.name: one.default for one in fields(OpenOptions)}
    settings = {one.name: one.default for one in fields(ServerSettings)}
    assert f"`-b` is {options['n_batch']} (" in page
    assert f"`--timeout` {settings['send_timeout_s']:.0f} seconds" in page
    assert f"`--sse-ping-interval` {settings['ping_s']:.0f} (" in page


def test_each_name_of_the_pin_is_on_the_page_once() -> None:
    names = [
        name
        for line in llama_server_flags.page().splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(-[^`]+)`", line.split(" | ")[0])
    ]
    theirs = [name for one in their_flags(SOURCE.read_text()) for name in one.all_names]
    assert len(theirs) > 400
    assert sorted(names) == sorted(theirs)


@pytest.mark.parametrize(
    ("call", "flag"),
    [
        (
            (
                '{"-c", "--ctx"}, "N", string_format("a (b", 1), '
                '[](common_params & params, int value) {}).set_env("LLAMA_ARG_C")'
            ),
            TheirFlag(("-c", "--ctx"), (), 1, "LLAMA_ARG_C", "common", False),
        ),
        (
            (
                '// a note of ")"\n {"--a"},\n {"-na", "--no-a"}, "words",\n'
                "[](common_params &, bool v) {}).set_examples({LLAMA_EXAMPLE_CLI, "
                "LLAMA_EXAMPLE_SERVER})"
            ),
            TheirFlag(("--a",), ("-na", "--no-a"), 0, "", "server", False),
        ),
        (
            (
                '{"--two"}, "A", "B", "words", [](common_params & p, const std::string & a, '
                "const std::string & b) {}).set_examples(some).set_spec()"
            ),
            TheirFlag(("--two",), (), 2, "", "spec", False),
        ),
        (
            (
                '{"-o"}, "N", "words", [](common_params & /*p*/, int /*v*/) { arg_removed("x"); }'
                ").set_sampling()"
            ),
            TheirFlag(("-o",), (), 1, "", "sampling", True),
        ),
        (
            '{"--i"}, "words", [](common_params & p) {}).set_excludes({LLAMA_EXAMPLE_CLI})',
            TheirFlag(("--i",), (), 0, "", "common", False),
        ),
        (
            '{"--i"}, "words", [](common_params & p) {}).set_excludes({LLAMA_EXAMPLE_SERVER})',
            None,
        ),
        ('{"--i"}, "words", [](common_params & p) {}).set_examples({LLAMA_EXAMPLE_CLI})', None),
    ],
)
def test_how_an_option_of_the_source_is_read(call: str, flag: TheirFlag | None) -> None:
    assert their_flags(f"{_LISTS}add_opt(common_arg({call});") == ([] if flag is None else [flag])


@pytest.mark.parametrize("call", ['names, "words", [](common_params & p) {})', '{"-a"}, "words")'])
def test_an_option_of_another_form_is_not_left_out(call: str) -> None:
    with pytest.raises(ValueError, match="a form that is not known"):
        their_flags(f"add_opt(common_arg({call});")


def test_flags_take_as_many_values_as_those_of_the_pin_and_their_variables() -> None:
    found: list[str] = []
    for flag in their_flags(SOURCE.read_text()):
        off = flag.variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")
        for name in flag.all_names:
            if name in IDLE:
                found += [name] * (IDLE[name][0] != flag.n_values)
            elif name in BY_NAME:
                ours = BY_NAME[name]
                variable = off if name in flag.negated else flag.variable
                is_same = ours.variable == variable or flag.is_removed
                found += [name] * ((ours.read is not None) != bool(flag.n_values) or not is_same)
            elif name not in REFUSED and name not in ("-h", "--help", "--usage", "--version"):
                found.append(f"{name} is in no table")
    assert found == []


def test_what_the_page_says_of_serve_is_there() -> None:
    options = {name for names in llama_server_flags.options_of_serve().values() for name in names}
    keys = {one.name for one in fields(OpenOptions)} | {"adapters", "scale", "chat_template"}
    of_requests = {one.name for one in fields(RequestOptions)}
    of_requests |= {"reasoning_format", "chat_template_kwargs", "response_format"}
    for field in sorted({flag.field for flag in FLAGS}):
        told = llama_server_flags.of_serve(field)
        named = re.findall(r"`(-[\w-]+)", told)
        assert [one for one in named if one not in options and one != "-np"] == [], told
        words = re.findall(r"`([a-z]\w+)`", told)
        known = of_requests if "of a request" in told else keys
        assert [one for one in words if one not in known] == [], told
