"""Measures another server with the same prompts: any server with OpenAI's API."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic, perf_counter
from typing import Any, TypeVar, cast

from pyllama_spec.bench.machine import process_cpu_s
from pyllama_spec.chat.prompt_file import Prompt
from pyllama_spec.errors import ArgumentError, PyllamaSpecError

_T = TypeVar("_T")

_TIMEOUT_S = 600.0
_CONNECT_TIMEOUT_S = 10.0
# Larger figures in an answer are none.
_MOST_TOKENS, _MOST_MS = 2**31, 1e12
# A larger answer is none.
_MOST_BYTES = 1 << 26


class PeerError(PyllamaSpecError):
    """The peer did not answer, or its answer holds no text."""


class PeerUnreachableError(PeerError):
    """The peer's address cannot be reached."""


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One answer of a peer.

    Attributes:
        text: its text.
        n_tokens, seconds: their ratio is the peer's speed. With the peer's own timings: the tokens
            after the first and their time, as this package counts. With our clock: all tokens, and
            the time of the request with its prompt.
        is_own_timing: whether the peer's own timings were used.
        wall_s: time of the request.
        drafted, accepted: the counts of its speculation; None if it reports none.
        cpu_s: CPU time of its process for the request, prompt included; None if the process is
            unknown, or the system does not report it.
        is_same: whether its text equals plain decoding's; None if it was not compared.

    """

    text: str
    n_tokens: int
    seconds: float
    is_own_timing: bool
    wall_s: float
    drafted: int | None = None
    accepted: int | None = None
    cpu_s: float | None = None
    is_same: bool | None = None


class Peer:
    """A server that answers chats and completions.

    Args:
        url: its address, with or without /v1.
        timeout_s: how long an answer may take.
        pid: its process on this machine, whose processor time is measured; None if unknown.

    Raises:
        ArgumentError: the address is invalid.

    """

    def __init__(self, url: str, timeout_s: float = _TIMEOUT_S, pid: int | None = None) -> None:
        base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        parts = urllib.parse.urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ArgumentError(f"peer={url!r} is not an address; expected http://HOST:PORT")
        self.url = base
        self.model = "default"
        self._timeout_s = timeout_s
        self._pid = pid
        # A proxy in between would be measured too.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        # What keeps llama-server from reusing the prompt of the last repeat. Strict servers refuse
        # fields that they do not know.
        self._extra: dict[str, Any] = {"cache_prompt": False}

    def connect(self) -> None:
        """Asks the peer for its model, so that a wrong address fails before the long run.

        Raises:
            PeerError: no server answers there.

        """
        try:
            models = self._request("/v1/models", None, _CONNECT_TIMEOUT_S)
            self.model = str(models["data"][0]["id"])
        except PeerUnreachableError:
            raise
        except (PeerError, LookupError, TypeError):
            pass  # a server without a list of models takes any name

    def ask(self, prompt: Prompt, n_tokens: int, temperature: float, seed: int) -> PeerRun:
        """Sends a prompt to the peer and measures its answer.

        Raises:
            PeerError: the peer is gone, refuses the request, or sends an empty answer.

        """
        body = {
            "model": self.model, "max_tokens": n_tokens, "temperature": temperature, "seed": seed,
            "stream": False,
        }  # fmt: skip
        if prompt.messages:
            path, body["messages"] = "/v1/chat/completions", list(prompt.messages)
            if prompt.tools:
                body["tools"] = list(prompt.tools)
        else:
            path, body["prompt"] = "/v1/completions", prompt.text
        cpu_s, start = self._cpu_s(), perf_counter()
        try:
            completion = self._request(path, {**body, **self._extra}, self._timeout_s)
        except _RefusedError:
            if not self._extra:
                raise
            self._extra = {}
            cpu_s, start = self._cpu_s(), perf_counter()
            completion = self._request(path, body, self._timeout_s)
        run = self._run(completion, perf_counter() - start)
        end_s = self._cpu_s()
        return run if cpu_s is None or end_s is None else replace(run, cpu_s=end_s - cpu_s)

    def _cpu_s(self) -> float | None:
        return None if self._pid is None else process_cpu_s(self._pid)

    def _run(self, completion: Mapping[str, Any], wall_s: float) -> PeerRun:
        try:
            choice = completion["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
        except (LookupError, TypeError):
            raise PeerError(f"{self.url} answered without a choice: {completion!r:.200}") from None
        timings = completion.get("timings")
        if isinstance(timings, Mapping) and _is_positive(timings.get("predicted_ms")):
            # llama-server's clock starts with the first token, which it counts.
            n = (_count(timings.get("predicted_n")) or 0) - 1
            run = PeerRun(
                str(text or ""), n, float(timings["predicted_ms"]) / 1e3, True, wall_s,
                _count(timings.get("draft_n")), _count(timings.get("draft_n_accepted")),
            )  # fmt: skip
        else:
            usage = completion.get("usage")
            n = _count(usage.get("completion_tokens") if isinstance(usage, Mapping) else None) or 0
            run = PeerRun(str(text or ""), n, wall_s, False, wall_s)
        if run.n_tokens < 1:
            raise PeerError(
                f"{self.url} answered with nothing to measure: {run.n_tokens + run.is_own_timing} "
                f"tokens, text {run.text!r:.60}; see its log"
            )
        return run

    def _request(
        self, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"}
        )

        until = monotonic() + timeout_s

        def read() -> bytes:
            try:
                with self._opener.open(request, timeout=timeout_s) as response:
                    return _body(response, until)
            except urllib.error.HTTPError as error:
                with error:
                    said = error.read(300).decode(errors="replace").strip() or "no text"
                kind = _RefusedError if error.code in (400, 422) else PeerError
                raise kind(
                    f"{self.url}{path} answered HTTP {error.code} {error.reason}: {said}"
                ) from None

        try:
            raw = within(timeout_s, read)
        except TimeoutError:
            raise PeerUnreachableError(
                f"{self.url}{path} gave no whole answer within {round(timeout_s, 1):g} s"
            ) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise PeerUnreachableError(
                f"cannot reach {self.url}{path}: {reason}; is the server running?"
            ) from None
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            raise PeerError(f"{self.url}{path} answered {raw[:60]!r}, not JSON") from None
        if not isinstance(answer, dict):
            raise PeerError(f"{self.url}{path} answered {answer!r:.60}, not an object")
        return answer


class _RefusedError(PeerError):
    """The server refuses a field of the request."""


def _body(response: Any, until: float) -> bytes:
    """The body of a response, in parts: a server may send without end.

    Raises:
        PeerError: it is larger than any answer.
        TimeoutError: it is not complete at `until`, on the clock of monotonic().

    """
    body = bytearray()
    while part := response.read1(1 << 16):
        body += part
        if len(body) > _MOST_BYTES:
            raise PeerError(f"{response.url} answered more than {_MOST_BYTES >> 20} MiB")
        if monotonic() > until:
            raise TimeoutError
    if response.length:
        raise http.client.IncompleteRead(bytes(body), response.length)
    return bytes(body)


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """The result of a call that reads from a server, by the clock.

    The timeout of a socket begins anew with every byte. The thread of a call that takes longer goes
    on until the call ends.

    Raises:
        TimeoutError: the call took longer.

    """
    done: list[tuple[_T | None, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            done.append((None, error))

    thread = threading.Thread(target=run, name="pyllama_spec peer", daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise TimeoutError(f"no whole answer within {max(seconds, 0.0):.0f} s")
    result, error = done[0]
    if error is not None:
        raise error
    return cast("_T", result)


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < _MOST_MS


def _count(value: object) -> int | None:
    """A number of tokens; None for what cannot be one."""
    if not isinstance(value, (int, float)) or not 0 <= value <= _MOST_TOKENS:
        return None
    return int(value)
