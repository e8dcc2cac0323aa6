"""The keywords of Llama(): types, defaults, meaning, and the engine options made of them.

A new keyword is a field of OpenOptions with its line in the docstring, and the place that uses it.
"""

from __future__ import annotations

import inspect
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec

from pyllama_spec.drafters import Drafter, DraftOptions
from pyllama_spec.drafters.options import draft_place
from pyllama_spec.engine import ContextParams, Model, default_n_threads
from pyllama_spec.engine.checks import count, integer, meant, one_of, real
from pyllama_spec.engine.context_params import ATTENTION, POOLING, ROPE_SCALING
from pyllama_spec.engine.model import Progress, SplitMode
from pyllama_spec.engine.overrides import Override
from pyllama_spec.engine.system import memory_bytes
from pyllama_spec.errors import ArgumentError, ModelLoadError, UnsupportedError, shown, warn
from pyllama_spec.requests.options import ACCEPTANCE, Acceptance
from pyllama_spec.speculative import ControllerChoice

# f(llama=..., messages=..., ...) -> a chat completion, or chunks of one
ChatHandler = Callable[..., Any]
_P = ParamSpec("_P")

# The engine's numbers, which llama-cpp-python's constants are.
SPLIT_MODES = ("none", "layer", "row", "tensor")
KV_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 30: "bf16",
}  # fmt: skip
_ROPE_SCALING, _POOLING, _ATTENTION = (
    {number: name for name, number in numbers.items()}
    for numbers in (ROPE_SCALING, POOLING, ATTENTION)
)

_NUMBER_OF_TYPE = {name: number for number, name in KV_TYPES.items()}

# What copies of past prompts may take where nothing is said.
_STORE_BYTES = 2 << 30
_FLAGS = ("logits_all", "embedding", "no_perf", "verbose", "spm_infill")
_FLAGS_OR_NONE = ("op_offload", "swa_full")
# Keywords that a Llama has no attribute for: they are used up while it is opened.
_NO_ATTRIBUTES = frozenset(
    ("draft", "n_draft", "p_min", "lookup", "controller", "chat_template", "acceptance")
)
# Keywords of older versions, which LangChain still hands on. They said what the model's file says
# today, or changed nothing.
_OF_OLD = ("n_parts", "f16_kv", "n_gqa", "rms_norm_eps", "mul_mat_q", "low_vram")


@dataclass(frozen=True, slots=True, eq=False)
class OpenOptions:
    """The options of a Llama.

    Args:
        model_path: the target's GGUF file; the first part of a split model.
        n_gpu_layers: layers on the GPU; -1 for all. `model.placement` has the real placement, and
            a warning says if fewer layers are there.
        devices: names of the devices that take layers, as `doctor` lists them; None for all.
        draft_gpu_layers: layers on the GPU for a draft that is given as a file; None for
            n_gpu_layers, or for 0 with rpc_servers.
        rpc_servers: "host:port" of servers that take layers of the target, see docs/rpc.md; needs
            n_gpu_layers. A lost server raises RemoteError.
        rpc_timeout: seconds that one answer of a server may take, in this process, on connections
            opened from now on; None leaves it [300].
        split_mode, main_gpu, tensor_split: several GPUs, see engine.Model.
        vocab_only: load the vocabulary only, for tokenize() and other calls without weights.
        use_mmap, use_mlock: map the file; lock it in memory, where it is not repacked.
        kv_overrides: keys of the file with other values, see engine/overrides.py.
        seed: the start of the stream of seeds for requests without one: equal requests give
            different texts, set_seed() starts again. None or -1 for a random start.
        n_ctx: positions for prompt and text of a request; None or 0 for as many as the model was
            trained with.
        n_batch, n_ubatch: tokens per decode, and per step inside of it.
        n_threads: CPU threads; None or 0 for the physical cores.
        n_threads_batch: the same for prompts and verify batches; None or 0 for n_threads.
        rope_scaling_type, rope_freq_base, rope_freq_scale: None, 0, 0 for the model's own.
        pooling_type, attention_type: of embeddings; None for the model's own.
        yarn_ext_factor, yarn_attn_factor, yarn_beta_fast, yarn_beta_slow, yarn_orig_ctx: of YaRN;
            below 0, and 0 for the last, for the model's own.
        logits_all: keep the logits of every token that eval() reads, in `scores`.
        embedding: allow embed() and create_embedding(), in a context of their own.
        offload_kqv: keep the KV cache on the GPU.
        flash_attn: None for off on the CPU, and the engine's choice on a GPU.
        op_offload: let a GPU compute wide batches of layers in the host's memory; None for no.
        swa_full: keep sliding-window layers whole, so that any prefix can be reused; None for yes.
        last_n_tokens_size: how many past tokens penalties see.
        lora_path, lora_scale: an adapter, and how much of it; set_adapters() takes several.
        lora_base: nothing, as in llama-cpp-python.
        numa, no_perf: nothing.
        chat_format: "chatml", "llama-3" and the other names of llama_cpp.llama_chat_format, or the
            name of a template in the file; None for the file's default one.
        chat_handler: a function that answers chats instead.
        draft_model: llama-cpp-python's drafts: a LlamaPromptLookupDecoding or a LlamaDraftModel.
        tokenizer: a LlamaTokenizer, which changes nothing; no other.
        type_k, type_v: types of the KV cache, such as "f16" or "q8_0".
        spm_infill: put the suffix before the prefix to fill a gap.
        verbose: progress bars, the engine's messages while it loads, and a line for each request,
            on stderr.
        draft: the drafter. None or "none" for plain decoding; "prompt-lookup" for copies of the
            text itself; "suffix" for copies of earlier requests' texts too; "grammar" for only the
            tokens that a grammar or schema forces (every other drafter drafts them as well); "mtp"
            for the head in the model's own file; the path of the GGUF of a draft or of a smaller
            model; a Drafter;
            "auto" for the head if there is one, else a draft beside the file that was made for it,
            else copies of the text itself, as "suffix" makes them. It changes how fast the text
            comes, never the text.
        n_draft: the most tokens to draft per round; None for the drafter's own number.
        p_min: end a draft of a file before a token with a lower probability. The controller is off
            then. 0 drafts n_draft tokens in every round, which accepts the most tokens but is not
            always fastest.
        lookup: if the last tokens, this many, occurred in the text before, copy what followed there
            instead of asking the draft of a file, if that is likely right. None for 5; 0 for never,
            and without n-grams: the head of the file alone.
        controller: decides how many tokens are drafted. None or "profit": as many as are fastest
            here, and none if plain decoding is faster; "fixed": n_draft tokens in every round;
            "off": none; or a speculative.Controller.
        acceptance: how drafts are accepted at a temperature. "exact": a seed gives the same text
            with a draft and without. "noise": so it does, but another text than "exact": target and
            draft model draw by the same noise, and choose the same token more often.
            "distribution": rejection sampling of what a draft model draws from its own
            distribution; tokens have the same distribution, but the text depends on the draft. For
            a smaller model as the draft: with all other drafters, at temperature 0, and with
            grammars, logits processors and mirostat, requests are accepted exactly, and
            `speculation` says why. See docs/draft-models.md.
        draft_n_ctx: how many tokens of a sequence a draft from a file, or the head in the model's
            own file, remembers. None for as many as are of use to it, which is n_ctx for all but
            DFlash. Fewer take less memory and time; the oldest are dropped.
        repack: copy weights to memory in an order that is read faster, see engine.Model. Near
            ties of a text may round otherwise without it.
        n_parallel: how many requests are computed at once. The KV cache is that many times as
            large.
        max_waiting: the most requests that may wait for a place or, set aside, for their reader;
            one more is a QueueFullError at once. None for no limit.
        chat_template: Jinja text instead of the file's.
        prefix_cache_bytes: the most memory for copies of what past requests have read, so that a
            prompt with the same beginning need not read it again. None for 2 GiB, and no more than
            a quarter of the machine's memory; 0 for no copies besides the n_parallel places.
        draft_memory: the file of a store of texts. "suffix", "mtp" and drafts from files copy from
            it, and requests are written to it unless they have remember=False; one file for each
            tokenizer, see docs/suffix.md. None, the default: nothing is written.

    """

    model_path: str | os.PathLike[str]
    _: KW_ONLY
    n_gpu_layers: int = 0
    split_mode: SplitMode | int = "layer"
    main_gpu: int = 0
    tensor_split: Sequence[float] | None = None
    vocab_only: bool = False
    use_mmap: bool = True
    use_mlock: bool = False
    kv_overrides: Mapping[str, Override] | None = None
    seed: int | None = None
    n_ctx: int | None = 512
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int | None = None
    n_threads_batch: int | None = None
    rope_scaling_type: str | int | None = None
    pooling_type: str | int | None = None
    attention_type: str | int | None = None
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_orig_ctx: int = 0
    logits_all: bool = False
    embedding: bool = False
    offload_kqv: bool = True
    flash_attn: bool | None = None
    op_offload: bool | None = None
    swa_full: bool | None = None
    no_perf: bool = False
    last_n_tokens_size: int = 64
    lora_base: str | None = None
    lora_scale: float = 1.0
    lora_path: str | os.PathLike[str] | None = None
    numa: bool | int = False
    chat_format: str | None = None
    chat_handler: ChatHandler | None = None
    draft_model: Any = None
    tokenizer: Any = None
    type_k: str | int | None = None
    type_v: str | int | None = None
    spm_infill: bool = False
    verbose: bool = False
    draft: str | os.PathLike[str] | Drafter | None = None
    n_draft: int | None = None
    p_min: float | None = None
    lookup: int | None = None
    controller: ControllerChoice = None
    acceptance: Acceptance = "exact"
    repack: bool = True
    n_parallel: int = 1
    max_waiting: int | None = None
    chat_template: str | None = None
    devices: Sequence[str] | None = None
    draft_gpu_layers: int | None = None
    draft_n_ctx: int | None = None
    rpc_servers: Sequence[str] | None = None
    rpc_timeout: float | None = None
    prefix_cache_bytes: int | None = None
    draft_memory: str | os.PathLike[str] | None = None

    @classmethod
    def from_keywords(
        cls, model_path: str | os.PathLike[str], keywords: Mapping[str, Any]
    ) -> tuple[OpenOptions, list[str]]:
        """Reads the options and the unknown keywords of a Llama() call."""
        known = {name: value for name, value in keywords.items() if name in KEYWORDS}
        return cls(model_path, **known), [name for name in keywords if name not in known]

    def keywords(self) -> dict[str, Any]:
        """The options by name as given: Llama(**keywords) opens the same again."""
        return {name: getattr(self, name) for name in KEYWORDS}

    def attributes(self) -> dict[str, Any]:
        """The options that are attributes of a Llama, by attribute name."""
        shown_keywords = (name for name in KEYWORDS if name not in _NO_ATTRIBUTES)
        values = {name: getattr(self, name) for name in shown_keywords}
        return {**values, "split_mode": self.split_name()}

    def check(self) -> None:
        """Checks the keywords that have no effect here or are not supported."""
        if self.model_path == "":
            raise ModelLoadError('model_path="" is no file name; give the path of a .gguf file')
        for name in (*_FLAGS, *_FLAGS_OR_NONE):
            flag = getattr(self, name)
            if not isinstance(flag, bool) and (flag is not None or name in _FLAGS):
                raise ArgumentError(f"{name}={shown(flag)} is not True or False")
        if self.numa:
            warn(f"numa={shown(self.numa)} has no effect here")
        if self.tokenizer is not None and not getattr(self.tokenizer, "is_of_the_model", False):
            raise UnsupportedError(
                f"tokenizer={shown(self.tokenizer)}: tokenizers other than the model's own "
                "vocabulary are not supported by this version; leave it out"
            )
        one_of(self.acceptance, ACCEPTANCE, "acceptance")
        if self.flash_attn is False and self.split_name() == "tensor":
            raise ArgumentError(
                "split_mode='tensor' needs flash attention, and flash_attn is off: leave "
                "flash_attn out, or choose split_mode layer"
            )
        if self.chat_handler is not None and not callable(self.chat_handler):
            raise ArgumentError(f"chat_handler={shown(self.chat_handler)} is not a function")

    def context_params(self) -> ContextParams:
        """The parameters of the target's context."""
        return ContextParams(
            n_ctx=_zero_is_none(self.n_ctx), n_batch=self.n_batch, n_ubatch=self.n_ubatch,
            n_threads=_zero_is_none(self.n_threads),
            n_threads_batch=_zero_is_none(self.n_threads_batch),
            flash_attn=self.flash_attn, offload_kqv=self.offload_kqv,
            op_offload=bool(self.op_offload), swa_full=self.swa_full is not False,
            type_k=_by_number(self.type_k, "type_k", KV_TYPES) or "f16",
            type_v=_by_number(self.type_v, "type_v", KV_TYPES) or "f16",
            rope_scaling=_by_number(self.rope_scaling_type, "rope_scaling_type", _ROPE_SCALING),
            rope_freq_base=self.rope_freq_base, rope_freq_scale=self.rope_freq_scale,
            yarn_ext_factor=self.yarn_ext_factor, yarn_attn_factor=self.yarn_attn_factor,
            yarn_beta_fast=self.yarn_beta_fast, yarn_beta_slow=self.yarn_beta_slow,
            yarn_orig_ctx=self.yarn_orig_ctx,
            pooling=_by_number(self.pooling_type, "pooling_type", _POOLING),
            attention_type=_by_number(self.attention_type, "attention_type", _ATTENTION),
        )  # fmt: skip

    def split_name(self) -> Any:
        """The name of the mode that splits the model over several GPUs."""
        return _by_number(self.split_mode, "split_mode", dict(enumerate(SPLIT_MODES)))

    def penalty_window(self) -> int:
        """The number of past tokens that penalties read."""
        return count(self.last_n_tokens_size, "last_n_tokens_size", -1)

    def queue_limit(self) -> int | None:
        """The maximum number of requests in the queue; None for no limit."""
        return None if self.max_waiting is None else count(self.max_waiting, "max_waiting")

    def store_bytes(self) -> int:
        """The maximum bytes of stored prompt prefixes."""
        if self.prefix_cache_bytes is None:
            return min(_STORE_BYTES, memory_bytes() // 4)
        return count(self.prefix_cache_bytes, "prefix_cache_bytes", 0, sys.maxsize)

    def adapters(self) -> list[tuple[str | os.PathLike[str], float]]:
        """The initial LoRA adapters."""
        if self.lora_path is None:
            return []
        return [(self.lora_path, real(self.lora_scale, "lora_scale"))]

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of engine.Model."""
        return {
            "n_gpu_layers": self.n_gpu_layers, "split_mode": self.split_name(),
            "main_gpu": self.main_gpu, "tensor_split": self.tensor_split,
            "vocab_only": self.vocab_only, "use_mmap": self.use_mmap, "use_mlock": self.use_mlock,
            "repack": self.repack, "kv_overrides": self.kv_overrides, "devices": self.devices,
            "rpc_servers": self.rpc_servers,
        }  # fmt: skip

    def draft_options(self, *, progress: Progress | None, is_adaptive: bool) -> DraftOptions:
        """The options of the drafter; see DraftOptions."""
        place = draft_place(
            self.n_gpu_layers, self.draft_gpu_layers, self.devices, self.rpc_servers
        )
        return DraftOptions(
            self.n_draft, self.p_min, self.lookup, progress=progress, is_adaptive=is_adaptive,
            n_ctx=self.draft_n_ctx, memory=self.draft_memory, **place,
        )  # fmt: skip


KEYWORDS = tuple(field.name for field in fields(OpenOptions))


def keywords_of(
    options: Callable[_P, OpenOptions],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """A decorator that gives Llama.__init__ the keywords of OpenOptions.

    Type checkers take them from here; inspect.signature(), help() and typing.get_type_hints(), and
    through them notebooks, from what it sets.
    """
    signature = inspect.signature(OpenOptions.__init__)
    unknown = inspect.Parameter("unknown", inspect.Parameter.VAR_KEYWORD, annotation="Any")
    parameters = [*signature.parameters.values(), unknown]

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        any_init: Any = init
        any_init.__signature__ = signature.replace(parameters=parameters, return_annotation="None")
        # The names in these types are known to this module, and not to that of Llama.
        any_init.__annotations__ = {
            **typing.get_type_hints(options.__init__), "unknown": Any, "return": type(None),
        }  # fmt: skip
        return init

    return decorate


def with_arguments(doc: str | None) -> str | None:
    """Inserts the keywords' documentation into the docstring of Llama."""
    arguments = OpenOptions.__doc__
    if doc is None or arguments is None:  # python -OO
        return None
    # Python 3.13 has taken the indentation away, and older ones have not.
    doc, arguments = inspect.cleandoc(doc), inspect.cleandoc(arguments)
    head, raises, rest = doc.partition("Raises:\n")
    return f"{head}{arguments[arguments.index('Args:') :]}\n\n{raises}{rest}"


def warn_of_unknown(unknown: Iterable[str]) -> None:
    """Warns of unknown keywords, and names similar ones.

    llama-cpp-python takes any: a program that runs there is not ended here by one that never did
    anything.
    """
    for keyword in unknown:
        if keyword in _OF_OLD:
            continue
        guess = meant(keyword, KEYWORDS)
        warn(f"Llama has no keyword {keyword!r}{guess}")


def for_model(params: ContextParams, model: Model) -> ContextParams:
    """Warns of options that have no effect on this model."""
    return params if model.is_on_gpu else replace(params, op_offload=False)


def warn_of_length(params: ContextParams, model: Model) -> None:
    """Warns of a context longer than the model was trained on, unless RoPE scaling is set."""
    info, n_ctx = model.info, params.n_ctx or 0
    scaled = params.rope_scaling or params.rope_freq_base or params.rope_freq_scale
    if n_ctx > info.n_ctx_train and not info.is_recurrent and not scaled:
        warn(
            f"n_ctx={n_ctx} is more than the {info.n_ctx_train} tokens that the model was trained "
            "with: its text beyond them may make no sense",
        )


def context_numbers(
    model: Model, params: ContextParams, values: Mapping[str, Any]
) -> SimpleNamespace:
    """The parameters of a model's context; `values` are those of Llama's keywords."""
    n_threads = params.n_threads or default_n_threads()
    n_ctx = params.n_ctx or model.info.n_ctx_train
    n_batch = min(params.n_batch, n_ctx)
    return SimpleNamespace(
        n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(params.n_ubatch, n_batch),
        n_seq_max=params.n_seq_max,
        n_threads=n_threads, n_threads_batch=params.n_threads_batch or n_threads,
        rope_scaling_type=ROPE_SCALING[params.rope_scaling],
        pooling_type=POOLING[params.pooling], rope_freq_base=params.rope_freq_base,
        rope_freq_scale=params.rope_freq_scale, yarn_ext_factor=params.yarn_ext_factor,
        yarn_attn_factor=params.yarn_attn_factor, yarn_beta_fast=params.yarn_beta_fast,
        yarn_beta_slow=params.yarn_beta_slow, yarn_orig_ctx=params.yarn_orig_ctx,
        offload_kqv=params.offload_kqv, op_offload=params.op_offload,
        swa_full=params.swa_full, embeddings=values["embedding"],
        type_k=_NUMBER_OF_TYPE[params.type_k], type_v=_NUMBER_OF_TYPE[params.type_v],
        no_perf=values["no_perf"],
    )  # fmt: skip


def model_numbers(values: Mapping[str, Any]) -> SimpleNamespace:
    """The parameters of a model, of the values of Llama's keywords."""
    names = ("n_gpu_layers", "main_gpu", "tensor_split", "vocab_only", "use_mmap", "use_mlock")
    shown = {name: values[name] for name in names}
    return SimpleNamespace(**shown, split_mode=SPLIT_MODES.index(values["split_mode"]))


def _by_number(value: object, name: str, known: Mapping[int, Any]) -> Any:
    """The value for a number of the engine's; other values unchanged."""
    if isinstance(value, str) and name in ("pooling_type", "rope_scaling_type"):
        one_of(value, known.values(), name)  # the engine's parameter has another name
    if value is None or isinstance(value, (str, bool)) or not hasattr(value, "__index__"):
        return value
    number = integer(value, name)
    if number not in known:
        raise ArgumentError(f"{name}={shown(number)} is not one of {', '.join(map(str, known))}")
    return known[number]


def _zero_is_none(value: int | None) -> int | None:
    """Turns n_ctx=0 and n_threads=0 into None: the default of the model or the machine."""
    return None if value is not None and not isinstance(value, bool) and value == 0 else value
