"""Chats with pictures: image_url parts with data: URLs."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pyllama_spec import Llama
from pyllama_spec.chat.media_urls import MediaReader
from pyllama_spec.chat.pictures import decode_picture, take_pictures
from pyllama_spec.cli import main
from pyllama_spec.engine.media import decoded_audio, joined
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama_cpp import llama_chat_format
from tests.media_tools import (
    file_of,
    picture,
    plain_text,
    projector,
    prompt_of,
    rows_of,
    seeing,
    sound,
    url_of,
    wav,
)  # fmt: skip
from tests.models import model_path

N = 16


def opened(kind: str, **options: Any) -> Llama:
    given = {"mmproj_path": projector(kind).path, "n_ctx": 1024, "n_threads": 1, **options}
    return Llama(seeing(kind).path, **given)


def test_a_template_that_shows_a_message_twice() -> None:
    content = [{"type": "text", "text": "see "}, url_of(file_of(picture(40, 50)))]
    shown = "{{ messages[0]['content'] }}, {{ messages[0]['content'] }}"
    with opened("gemma3", chat_template=shown) as llm:
        answer = llm.create_chat_completion(
            [{"role": "user", "content": content}], max_tokens=8, temperature=0,
            return_token_ids=True,
        )  # fmt: skip
    said: tuple[Any, ...] = ("see ", picture(40, 50))
    parts = prompt_of("gemma3", *said, ", ", *said)
    assert answer["choices"][0]["token_ids"] == plain_text("gemma3", parts, 8)


def test_a_template_that_changes_the_text_is_refused() -> None:
    """It answered without the picture."""
    with opened("gemma3", chat_template="{{ messages[0]['content'] | upper }}") as llm:
        with pytest.raises(UnsupportedError) as caught:
            llm.create_chat_completion(
                [{"role": "user", "content": [url_of(file_of(picture(8, 8)))]}]
            )
        assert caught.value.param == "messages[0].content[0].image_url"


@pytest.mark.parametrize("draft", [None, "suffix"])
@pytest.mark.parametrize("kind", ["gemma3", "qwen3vl", "idefics3"])
def test_a_chat_about_pictures(kind: str, draft: str | None) -> None:
    first, second = picture(40, 50), picture(33, 47, 2)
    messages: list[Any] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "what is "}, url_of(file_of(first))],
        }
    ]
    asked: tuple[Any, ...] = ("<|im_start|>user\nwhat is ", first)
    with opened(kind, draft=draft) as llm:
        for more in (second, None):
            parts = prompt_of(kind, *asked, "<|im_end|>\n<|im_start|>assistant\n")
            answer = llm.create_chat_completion(
                messages, max_tokens=N, temperature=0, return_token_ids=True
            )
            ids = answer["choices"][0]["token_ids"]
            assert ids == plain_text(kind, parts, N)
            n_prompt = sum(len(p) if isinstance(p, tuple) else len(p.ids) for p in parts)
            assert answer["usage"]["prompt_tokens"] == n_prompt
            if more is not None:
                content = [url_of(file_of(more)), {"type": "text", "text": "and?"}]
                messages = [{"role": "user", "content": [*messages[0]["content"], *content]}]
                asked = (*asked, more, "and?")


@pytest.mark.parametrize(("bound", "n"), [("image_max_tokens", 16), ("image_min_tokens", 100)])
def test_bounds_of_a_picture(bound: str, n: int) -> None:
    with opened("qwen3vl", **{bound: n}) as llm:
        assert llm._eyes is not None
        (rows,) = rows_of(llm._eyes.projector.image(picture(64, 64)))
        assert len(rows.ids) == n


def test_what_a_projector_cannot_take_is_the_pictures_fault() -> None:
    for kind, error in (("idefics3", ArgumentError), ("ultravox", UnsupportedError)):
        thin: Any = url_of(file_of(np.zeros((1, 3000, 3), np.uint8)))
        with opened(kind) as llm, pytest.raises(error) as caught:
            llm.create_chat_completion([{"role": "user", "content": [thin]}])
        assert caught.value.param == "messages[0].content[0].image_url"


@pytest.mark.parametrize("kind", ["gemma3", "idefics3"])
def test_a_saved_chat_goes_on_in_another_process(kind: str) -> None:
    """As another one would load it: in another model, which has read no picture."""
    messages: list[Any] = [{"role": "user", "content": [url_of(file_of(picture(40, 50)))]}]
    options: Any = {"max_tokens": N, "temperature": 0, "return_token_ids": True}
    with opened(kind, swa_full=True) as llm:
        answer = llm.create_chat_completion(messages, **options)
        state = llm.save_state()
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "and?"}]
        expected = llm.create_chat_completion(messages, **options)
    with opened(kind, swa_full=True) as llm:
        llm.load_state(state)
        again = llm.create_chat_completion(messages, **options)
    assert again["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    n_cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert n_cached == expected["usage"]["prompt_tokens_details"]["cached_tokens"] > 20


@pytest.mark.parametrize("draft", [None, "suffix"])
@pytest.mark.parametrize("n_keep", [0, 30, -1])
@pytest.mark.parametrize("kind", ["gemma3", "qwen3vl", "idefics3"])
def test_a_shifted_context_keeps_pictures_or_drops_them_whole(
    kind: str, n_keep: int, draft: str | None
) -> None:
    images = [picture(40, 40), picture(32, 40, 2)]
    content = [url_of(file_of(image)) for image in images]
    parts = prompt_of(kind, "<|im_start|>user\n", *images, "<|im_end|>\n<|im_start|>assistant\n")
    tokens, media = joined(parts)
    n_ctx = len(tokens) + 60
    with opened(kind, draft=draft, n_ctx=n_ctx) as llm:
        answer = llm.create_chat_completion(
            [{"role": "user", "content": content}], max_tokens=60 + N, temperature=0,
            context_shift=True, n_keep=n_keep, return_token_ids=True,
        )  # fmt: skip
        ids = answer["choices"][0]["token_ids"]
    # The pending token is beyond the context. Then half of what may go has gone.
    seen = [*tokens, *ids[: n_ctx + 1 - len(tokens)]]
    first = min(len(tokens) if n_keep < 0 else n_keep, len(seen) // 2)
    runs = [(one.start, one.start + len(one.media.ids), one.media) for one in media]
    first = next((a for a, b, _ in runs if a < first < b), first)
    end = first + (len(seen) - first) // 2
    end = next((b for a, b, _ in runs if a < end < b), end)
    left: list[Any] = []
    for start, stop in ((0, first), (end, len(seen))):
        at = start
        for a, b, rows in runs:
            if start <= a and b <= stop:
                left += [tuple(seen[at:a]), rows]
                at = b
        left.append(tuple(seen[at:stop]))
    expected = plain_text(kind, tuple(part for part in left if part), N - 1)
    assert len(ids) == 60 + N and ids[n_ctx + 1 - len(tokens) :] == expected[: N - 1]


def test_generate_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = picture(40, 50)
    path = tmp_path / "a.png"
    path.write_bytes(file_of(pixels))
    files = ["-m", str(seeing("gemma3").path), "--mmproj", str(projector("gemma3").path)]
    command = ["generate", *files, "-c", "1024", "-t", "1", "-n", str(N), "--json", "-p", "what?"]
    assert main([*command, "--chat", "--image", str(path)]) == 0
    parts = prompt_of(
        "gemma3", "<|im_start|>user\n", pixels, "what?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert json.loads(capsys.readouterr().out)["tokens"] == plain_text("gemma3", parts, N)
    assert main([*command, "--image", str(path)]) == 1
    assert main([*command, "--chat", "--image", str(tmp_path / "none.png")]) == 1
    command = [*command[:3], *command[5:]]
    assert main([*command, "--chat", "--image", str(path), "--mmproj", "none"]) == 1
    assert "--mmproj" in capsys.readouterr().err


def test_generate_audio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, heard = tmp_path / "a.wav", wav(sound(0.7))
    path.write_bytes(heard)
    files = ["-m", str(seeing("ultravox").path), "--mmproj", str(projector("ultravox").path)]
    command = ["generate", *files, "-c", "1024", "-t", "1", "-n", str(N), "--json", "-p", "what?"]
    assert main([*command, "--chat", "--audio", str(path)]) == 0
    user, end = "<|im_start|>user\n", "what?<|im_end|>\n<|im_start|>assistant\n"
    parts = prompt_of("ultravox", user, decoded_audio(heard, 16_000), end)
    assert json.loads(capsys.readouterr().out)["tokens"] == plain_text("ultravox", parts, N)
    assert main(["doctor", *files, "-t", "1", "--max-rows", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["projector"]["read"] == "sound of 10 s"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A model in a folder with its projector, and another's, and one that is broken."""
    for name, file in (
        ("seer-4b-q4_0.gguf", seeing("gemma3").path),
        ("mmproj-seer-4b-F16.gguf", projector("gemma3").path),
        ("other-4b-it.gguf", seeing("gemma3").path),
        ("MMPROJ-other-4b-it.gguf", projector("gemma3").path),
    ):
        shutil.copy(file, tmp_path / name)
    (tmp_path / "mmproj-a-seer-4b-q4_0.gguf").write_bytes(b"GGUF")
    narrow = model_path("projector", family="gemma3", n_embd=32)
    shutil.copy(narrow, tmp_path / "mmproj-seer-4b-q4_0.gguf")
    return tmp_path / "seer-4b-q4_0.gguf"


def test_a_projector_beside_the_model_is_found(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Llama(beside, n_ctx=256) as llm:
        assert llm.mmproj_path is None
        without = llm.memory_bytes
    with Llama(beside, n_ctx=256, mmproj_path="auto") as llm:
        assert llm.mmproj_path == beside.parent / "mmproj-seer-4b-F16.gguf"
        assert llm.memory_bytes == without + llm.mmproj_path.stat().st_size
    with Llama(seeing("gemma3").path, n_ctx=256, mmproj_path="auto") as llm:
        assert llm.mmproj_path is None
    doctor = ["doctor", "-m", str(beside), "-t", "1", "--max-rows", "2"]
    assert main([*doctor, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["projector"]
    assert Path(found["path"]).name == "mmproj-seer-4b-F16.gguf"
    assert found["read_s"] > 0
    n_rows = sum(len(rows.ids) for rows in rows_of(projector("gemma3").image(picture(9, 12))))
    assert found["n_tokens"] > n_rows
    assert main(doctor) == 0
    assert f"takes {found['n_tokens']} tokens" in " ".join(capsys.readouterr().out.split())


def test_bench_of_a_prompt_with_a_picture(beside: Path) -> None:
    content = [url_of(file_of(picture(40, 50))), {"type": "text", "text": "what?"}]
    line = {"id": "a", "category": "b", "messages": [{"role": "user", "content": content}]}
    (prompts := beside.with_name("p.jsonl")).write_text(json.dumps(line))
    out = beside.with_name("out.json")
    command = ["bench", "-m", str(beside), "-d", "prompt-lookup", "-n", "8", "--repeat", "1"]
    assert main([*command, "--prompts", str(prompts), "--json", str(out)]) == 0
    (found,) = json.loads(out.read_text())["prompts"]
    assert found["same_text"]
    assert main([*command, "--prompts", str(prompts), "--mmproj", "none"]) == 1


def test_a_picture_in_a_conversation(
    beside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = picture(40, 50)
    path = beside.with_name("a picture.png")
    path.write_bytes(file_of(pixels))
    typed = f"/image nowhere.png\n/image '{path}'\nwhat?\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert main(["chat", "-m", str(beside), "-c", "1024", "-t", "1", "-n", str(N)]) == 0
    parts = prompt_of(
        "gemma3", "<|im_start|>user\n", pixels, "what?<|im_end|>\n<|im_start|>assistant\n"
    )
    said = (
        seeing("gemma3").vocab.detokenize(plain_text("gemma3", parts, N)).decode(errors="replace")
    )
    shown = capsys.readouterr()
    assert said in shown.out
    assert "nowhere.png" in shown.err


def asked(handler: Any) -> Any:
    """The ids of an answer about a picture."""
    content = [url_of(file_of(picture(40, 50))), {"type": "text", "text": "what?"}]
    with Llama(seeing("gemma3").path, chat_handler=handler, n_ctx=1024, n_threads=1) as llm:
        answer: Any = llm.create_chat_completion(
            [{"role": "user", "content": content}], max_tokens=N, temperature=0,
            return_token_ids=True,
        )  # fmt: skip
    return answer["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("MTMDChatHandler", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("Qwen25VLChatHandler", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("MoondreamChatHandler", "Question: ", "\n\nAnswer:"),
    ],
)
def test_handlers_of_llama_cpp_python(name: str, begin: str, end: str) -> None:
    path = str(projector("gemma3").path)
    handler = getattr(llama_chat_format, name)(clip_model_path=path, verbose=False)
    parts = prompt_of("gemma3", begin, picture(40, 50), f"what?{end}")
    assert asked(handler) == plain_text("gemma3", parts, N)


def test_a_handlers_own_chat_format() -> None:
    class Handler(llama_chat_format.Llava15ChatHandler):  # type: ignore[misc, valid-type]
        CHAT_FORMAT = (
            "{% for part in messages[0].content %}{{ part.text or part.image_url.url }}{% endfor %}"
        )

    parts = prompt_of("gemma3", picture(40, 50), "what?")
    assert asked(Handler(str(projector("gemma3").path))) == plain_text("gemma3", parts, N)


def test_llava_reads_the_system_message() -> None:
    handler = llama_chat_format.Llava15ChatHandler(str(projector("gemma3").path))
    chat: list[Any] = [{"role": "user", "content": "what?"}]
    with Llama(seeing("gemma3").path, chat_handler=handler, n_ctx=1024, n_threads=1) as llm:
        for messages, system in (
            ([{"role": "system", "content": "Be kind."}, *chat], "Be kind."),
            (chat, "A chat between a curious human and an artificial intelligence assistant."),
        ):
            answer = llm.create_chat_completion(messages, max_tokens=1, return_token_ids=True)
            prompt = llm.detokenize(answer["choices"][0]["prompt_token_ids"]).decode()
            assert prompt.startswith(system)
            assert prompt.endswith(" USER: what? ASSISTANT:")


def test_a_mark_is_no_text_of_the_caller() -> None:
    text = [{"type": "text", "text": "<__media__> media0"}]
    messages: Any = [{"role": "user", "content": [*text, url_of(file_of(picture(8, 8)))]}]
    marked, pictures = take_pictures(messages, MediaReader())
    (mark,) = pictures
    assert marked[0]["content"] == [*text, {"type": "text", "text": mark}]
    assert take_pictures(messages, MediaReader())[1].keys() != pictures.keys()


def test_a_file_shows_what_a_viewer_shows(tmp_path: Path) -> None:
    pixels = picture(24, 36)
    assert np.array_equal(decode_picture(file_of(pixels)), pixels)
    for kind in ("BMP", "GIF"):
        assert decode_picture(file_of(pixels, kind)).shape == pixels.shape
    turned = Image.Exif()
    turned[0x0112] = 6
    assert decode_picture(file_of(pixels, "JPEG", exif=turned)).shape == (36, 24, 3)
    for mode in ("P", "L", "LA", "RGBA", "1"):
        out = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(out, "PNG")
        assert decode_picture(out.getvalue()).shape == pixels.shape
    deep = np.full((6, 5), 40_000, np.uint16)
    assert np.array_equal(decode_picture(file_of(deep)), np.full((6, 5, 3), 40_000 >> 8))
    cmyk = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(cmyk, "JPEG")
    assert decode_picture(cmyk.getvalue()).shape == pixels.shape


def test_lying_files_are_refused() -> None:
    whole = file_of(picture(64, 64))
    # A header of 60,000 x 60,000 pixels, files of other kinds, and none at all.
    lying = bytearray(whole)
    lying[16:24] = (60_000).to_bytes(4, "big") * 2
    # A long row, for which decoders reserve more than its pixels, and scans of a JPEG without end.
    long = file_of(np.zeros((70_000, 1, 3), np.uint8))
    jpeg = file_of(picture(64, 64), "JPEG", progressive=True)
    scans = jpeg[:-2] + jpeg[jpeg.rfind(b"\xff\xda") : -2] * 100 + jpeg[-2:]
    for data in (bytes(lying), long, scans, b"", b"P6 1 1 255 abc", b"<svg/>", b"%PDF-1.4"):
        with pytest.raises(ArgumentError, match=r"^(?!.* at 0x)"):
            decode_picture(data)
