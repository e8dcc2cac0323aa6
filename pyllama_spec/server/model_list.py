"""The list of a server's models, and its TOML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pyllama_spec.chat.template import template_variables
from pyllama_spec.chat.tools import REASONING
from pyllama_spec.drafters import needs_file
from pyllama_spec.engine.checks import count, meant, one_of, real
from pyllama_spec.errors import ArgumentError, Face, PyllamaSpecError, UnsupportedError
from pyllama_spec.files import read_text
from pyllama_spec.llama.caches import BaseLlamaCache
from pyllama_spec.llama.open_model import check_options
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.options import options_of
from pyllama_spec.requests.options import OF_CHATS, RequestOptions

# The defaults of `serve`; copies of prompts count as a part of a model's memory.
_DEFAULTS: Mapping[str, Any] = {
    "n_ctx": 4096, "n_parallel": 4, "max_waiting": 64, "prefix_cache_bytes": 256 << 20,
    "mmproj_path": "auto",
}  # fmt: skip
# Options of requests in the file that are for chats alone, by create_chat_completion()'s names.
_OF_CHATS = (*OF_CHATS, "reasoning_format", "chat_template_kwargs")
_Name = Annotated[str, Meta(min_length=1, max_length=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that a server may load.

    Attributes:
        name: its name in requests.
        keywords: the keywords of Llama(), with model_path.
        aliases: further names of the model.
        adapters: LoRA files by name, each with its scale: models that share this one's weights,
            places and draft.
        defaults: request options for requests without them, by RequestOptions' names.
        chat_defaults: the same for chats alone, by the names of create_chat_completion().
        keep_alive_s: seconds without a request before it is closed; None for never.
        is_preloaded: whether it is loaded when the server starts.
    """

    name: str
    keywords: Mapping[str, Any]
    aliases: tuple[str, ...] = ()
    adapters: Mapping[str, tuple[Path, float]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    chat_defaults: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None
    is_preloaded: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use: the model, its aliases, its adapters."""
        return (self.name, *self.aliases, *self.adapters)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    """The models of a server, and their common limits.

    Attributes:
        specs: the specification of each model.
        default: the model for requests without a name.
        memory_bytes: the most bytes of all loaded models: weights, KV cache, drafts and
            prefix_cache_bytes; None for no bound.
        max_loaded: the most models loaded at once; None for no bound.
        load_timeout_s: the most seconds that a request waits for its model.
        cache: the folder of saved states, for all models.
        takes_any_name: whether the default model answers to unknown names.

    Raises:
        ArgumentError: there is no model, two have the same name, or `default` is unknown.
    """

    specs: tuple[ModelSpec, ...]
    default: str
    memory_bytes: int | None = None
    max_loaded: int | None = None
    load_timeout_s: float = 300.0
    cache: BaseLlamaCache | None = None
    takes_any_name: bool = False

    def __post_init__(self) -> None:
        names = [name for spec in self.specs for name in spec.names]
        if not names:
            raise ArgumentError("models", problem="is empty", remedy="give at least one")
        for name in {one for one in names if names.count(one) > 1}:
            raise ArgumentError(
                problem=f"two models, aliases or adapters are called {name!r}", remedy="rename one"
            )
        if self.default not in names:
            raise ArgumentError(
                "default", self.default, f"the name of a model{meant(self.default, names)}"
            )


class _Adapter(Struct, kw_only=True, forbid_unknown_fields=True):
    path: str
    scale: float = 1.0


class _Own(Struct, kw_only=True, forbid_unknown_fields=True):
    """The optional keys of a model's table besides the keywords of Llama()."""

    model_path: str
    aliases: list[_Name] = []
    adapters: dict[_Name, str | _Adapter] = {}
    requests: dict[str, Any] = {}
    keep_alive_s: float | None = None
    preload: bool = False


_OPTIONS = options_of(OpenOptions)
_KEYS = (*_Own.__struct_fields__, *(name for name, one in _OPTIONS.items() if one.in_files))

_TOML = Face(words={"True": "true", "False": "false"})


class _File(Struct, kw_only=True, forbid_unknown_fields=True):
    models: dict[_Name, dict[str, Any]]
    defaults: dict[str, Any] = {}
    default: str | None = None
    memory_mib: int | None = None
    max_loaded: int | None = None
    load_timeout_s: float = 300.0


def read_models(path: str | os.PathLike[str]) -> ModelList:
    """Reads the models of a TOML file; see docs/server-models.md.

    Nothing is loaded, and no model file is opened.

    Args:
        path: the path of the file; relative paths in it start from its folder.

    Raises:
        ArgumentError: the file is unreadable, or has an unknown key or a bad value.
        UnsupportedError: it asks for what is not supported.
    """
    file = Path(path)
    text = read_text(file, "the models' file")
    with _errors_of(str(path)):
        listed = _decoded(text)
        for name in listed.defaults:
            if name in ("aliases", "adapters"):
                raise ArgumentError(
                    name, problem="belongs to one model: it cannot be in [defaults]"
                )
        specs = []
        for name, table in listed.models.items():
            with _errors_of(f"models.{name}"):
                specs.append(_spec(name, {**listed.defaults, **table}, file.parent))
        memory, most = listed.memory_mib, listed.max_loaded
        return ModelList(
            specs=tuple(specs),
            default=next(iter(listed.models), "") if listed.default is None else listed.default,
            memory_bytes=None if memory is None else count(memory, "memory_mib", 1) << 20,
            max_loaded=None if most is None else count(most, "max_loaded", 1),
            load_timeout_s=real(listed.load_timeout_s, "load_timeout_s", 0),
        )


def _decoded(text: str) -> _File:
    try:
        return msgspec.toml.decode(text, type=_File)
    except msgspec.ValidationError as error:
        raise ArgumentError(problem=str(error)) from None
    except ImportError:
        raise UnsupportedError(
            "Python 3.10 reads TOML by the package tomli: pip install tomli"
        ) from None
    except ValueError as error:  # of tomllib
        raise ArgumentError(problem=f"it is not TOML: {error}") from None
    except RecursionError:
        raise ArgumentError(problem="its values are nested too deeply") from None


@contextmanager
def _errors_of(place: str) -> Iterator[None]:
    """Prefixes errors in the block with the part of the file."""
    try:
        yield
    except PyllamaSpecError as error:
        kind = UnsupportedError if isinstance(error, UnsupportedError) else ArgumentError
        raise kind(problem=f"{place}: {error.rendered(_TOML)}") from None


def _spec(name: str, table: Mapping[str, Any], folder: Path) -> ModelSpec:
    named = {key: value for key, value in table.items() if key in _Own.__struct_fields__}
    rest = {key: value for key, value in table.items() if key not in named}
    for key in rest:
        if key not in _KEYS:
            raise ArgumentError(key[:60], problem=f"is no key of a model{meant(key, _KEYS)}")
    try:
        own = msgspec.convert(named, _Own)
    except msgspec.ValidationError as error:
        raise ArgumentError(problem=str(error)) from None
    keep = own.keep_alive_s
    defaults, chats = _requests(own.requests)
    return ModelSpec(
        name=name, keywords=_keywords(own.model_path, rest, folder), aliases=tuple(own.aliases),
        adapters={key: _adapter(one, folder) for key, one in own.adapters.items()},
        defaults=defaults, chat_defaults=chats,
        keep_alive_s=None if keep is None else real(keep, "keep_alive_s", 0),
        is_preloaded=own.preload,
    )  # fmt: skip


def _adapter(given: str | _Adapter, folder: Path) -> tuple[Path, float]:
    if isinstance(given, str):
        return _place(folder, given), 1.0
    return _place(folder, given.path), real(given.scale, "scale")


def _place(folder: Path, path: str) -> Path:
    """The path of a file: relative to the list's folder, or to a home with ~."""
    try:
        return folder / Path(path).expanduser()
    except RuntimeError:
        raise ArgumentError(problem=f"{path!r:.200}: the home folder does not exist") from None


def _keywords(model: str, given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The keywords of Llama() for a model; all that needs no file is checked."""
    keywords = {**_DEFAULTS, **given}
    draft = keywords.get("draft")
    if isinstance(draft, str) and needs_file(draft):
        keywords["draft"] = str(_place(folder, draft))
    for key, one in _OPTIONS.items():
        is_file = one.is_path and key != "draft" and keywords.get(key) not in (one.words or ())
        if is_file and isinstance(keywords.get(key), str):
            keywords[key] = str(_place(folder, keywords[key]))
    path = str(_place(folder, model))
    options, _ = OpenOptions.from_keywords(path, keywords)
    check_options(options)
    return {"model_path": path, **keywords}


def _requests(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The defaults of requests, and those of chat requests."""
    chats = {key: value for key, value in given.items() if key in _OF_CHATS}
    defaults = {key: value for key, value in given.items() if key not in chats}
    RequestOptions.from_keywords(defaults)
    RequestOptions(**{key: value for key, value in given.items() if key in OF_CHATS})
    one_of(chats.get("reasoning_format"), (None, *REASONING), "reasoning_format")
    template_variables(chats.get("chat_template_kwargs"))
    return defaults, chats
