"""The keywords of Llama(): types, defaults, meaning, and the engine options made of them.

A new keyword is a field of OpenOptions with its line in the docstring, and the place that uses it.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec

from pyllama_spec.chat.media_urls import check_hosts
from pyllama_spec.drafters import Drafter, DraftOptions
from pyllama_spec.engine import ContextParams, Model, default_n_threads
from pyllama_spec.engine.checks import checked, instance, integer, meant, one_of
from pyllama_spec.engine.context_params import ATTENTION, POOLING, ROPE_SCALING
from pyllama_spec.engine.model import Progress, SplitMode
from pyllama_spec.engine.overrides import Override
from pyllama_spec.engine.system import memory_bytes
from pyllama_spec.errors import ArgumentError, ModelLoadError, UnsupportedError, shown, warn
from pyllama_spec.options import option, options_of, typed_values
from pyllama_spec.requests.options import ACCEPTANCE, Acceptance, check_seed
from pyllama_spec.speculative import ControllerChoice
from pyllama_spec.speculative.controller.profit import NAMES

# f(llama=..., messages=..., ...) -> a chat completion, or chunks of one
ChatHandler = Callable[..., Any]
_P = ParamSpec("_P")

# The engine's numbers, which llama-cpp-python's constants are.
SPLIT_MODES = ("none", "layer", "row", "tensor")
KV_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 30: "bf16",
}  # fmt: skip
# The engine's LLAMA_MAX_SEQ.
MAX_SEQUENCES = 256
# What copies of past prompts may take where nothing is said.
_STORE_BYTES = 2 << 30
# Keywords that a Llama has no attribute for: they are used up while it is opened.
_NO_ATTRIBUTES = frozenset(
    ("draft", "n_draft", "p_min", "lookup", "controller", "chat_template", "acceptance")
)
# Keywords of older versions, which LangChain still hands on. They said what the model's file says
# today, or changed nothing.
_OF_OLD = ("n_parts", "f16_kv", "n_gqa", "rms_norm_eps", "mul_mat_q", "low_vram")


def _named(numbers: Mapping[str | None, int]) -> Mapping[int, str | None]:
    return {number: name for name, number in numbers.items()}


def _names(numbers: Mapping[str | None, int]) -> tuple[str, ...]:
    return tuple(name for name in numbers if name is not None)


def _file(value: Any, name: str) -> Any:
    instance(value, (str, os.PathLike, type(None)), name)
    if value is not None and not os.fspath(value):
        raise ArgumentError(name, value, "a file name, or None for none")
    return value


def _folder(value: Any, name: str) -> Any:
    if _file(value, name) is not None and not os.path.isdir(value):  # noqa: PTH112 - or bytes
        raise ArgumentError(name, value, "a folder")
    return value


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
        mmproj_path: the model's second file, if it sees: its projector; "auto" for one beside the
            model whose name has mmproj in it. Chats may then have image_url parts with data: URLs.
        mmproj_offload: let the projector compute where the model does; False for the host.
        image_min_tokens, image_max_tokens: bounds for the tokens of a picture, for projectors that
            take pictures of any size; None for the projector's own.
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
            instead of asking the draft of a file, if that is likely right. None for 5; 0 for never.
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
        max_waiting: the most requests that may wait for a place; one more is a QueueFullError at
            once. None for no limit.
        chat_template: Jinja text instead of the file's.
        prefix_cache_bytes: the most memory for copies of what past requests have read, so that a
            prompt with the same beginning need not read it again. None for 2 GiB, and no more than
            a quarter of the machine's memory; 0 for no copies besides the n_parallel places.
        draft_memory: the file of a store of texts. "suffix", "mtp" and drafts from files copy from
            it, and requests are written to it unless they have remember=False; one file for each
            tokenizer, see docs/suffix.md. None, the default: nothing is written.
        media_hosts: hosts that pictures are fetched from where a chat names a URL of http or https:
            "example.org", with another port than the scheme's "example.org:8443". A private address
            is connected to only where it is itself in the list, such as "10.0.0.5:9000".
        media_path: a folder whose files a chat may name by a file: URL, by their path in it.
    """

    # fmt: off
    model_path: str | os.PathLike[str]
    _: KW_ONLY
    n_gpu_layers: int = option(
        0, part="model", words={"auto": -1, "all": -1}, cli="-ngl --n-gpu-layers", metavar="N",
        cli_default=None, group="target", help="layers on devices; -1: all [none]",
        server="-ngl --gpu-layers --n-gpu-layers", variable="ARG_N_GPU_LAYERS",
    )
    split_mode: SplitMode | int = option(
        "layer", part="model", numbers=dict(enumerate(SPLIT_MODES)),
        server="-sm --split-mode", variable="ARG_SPLIT_MODE",
    )
    main_gpu: int = option(0, part="model", server="-mg --main-gpu", variable="ARG_MAIN_GPU")
    tensor_split: Sequence[float] | None = option(
        None, part="model", server="-ts --tensor-split", variable="ARG_TENSOR_SPLIT"
    )
    vocab_only: bool = option(False, part="model")
    use_mmap: bool = option(True, part="model", server="--mmap", server_off="--no-mmap")
    use_mlock: bool = option(False, part="model", server="--mlock")
    kv_overrides: Mapping[str, Override] | None = option(
        None, part="model", read=typed_values, is_repeated=True, server="--override-kv"
    )
    seed: int | None = option(None, check=check_seed)
    n_ctx: int | None = option(
        512, part="context", is_0_none=True, cli="-c --n-ctx", cli_default=4096, group="draft",
        help="context length", server="-c --ctx-size", variable="ARG_CTX_SIZE",
    )
    n_batch: int = option(
        512, low=1, part="context", server="-b --batch-size", variable="ARG_BATCH"
    )
    n_ubatch: int = option(512, part="context", server="-ub --ubatch-size", variable="ARG_UBATCH")
    n_threads: int | None = option(
        None, part="context", is_0_none=True, cli="-t --threads", metavar="N", group="threads",
        help="CPU threads [the physical cores]", server="-t --threads", variable="ARG_THREADS",
    )
    n_threads_batch: int | None = option(
        None, part="context", is_0_none=True, server="-tb --threads-batch"
    )
    rope_scaling_type: str | int | None = option(
        None, part="context.rope_scaling", numbers=_named(ROPE_SCALING),
        server="--rope-scaling", variable="ARG_ROPE_SCALING_TYPE",
    )
    pooling_type: str | int | None = option(
        None, part="context.pooling", numbers=_named(POOLING), choices=_names(POOLING),
        cli="--pooling", group="served",
        help="how to pool token embeddings into a text's [the model's own]",
        server="--pooling", variable="ARG_POOLING",
    )
    attention_type: str | int | None = option(None, part="context", numbers=_named(ATTENTION))
    rope_freq_base: float = option(
        0.0, part="context", server="--rope-freq-base", variable="ARG_ROPE_FREQ_BASE"
    )
    rope_freq_scale: float = option(
        0.0, part="context", server="--rope-freq-scale", variable="ARG_ROPE_FREQ_SCALE"
    )
    yarn_ext_factor: float = option(
        -1.0, part="context", server="--yarn-ext-factor", variable="ARG_YARN_EXT_FACTOR"
    )
    yarn_attn_factor: float = option(
        -1.0, part="context", server="--yarn-attn-factor", variable="ARG_YARN_ATTN_FACTOR"
    )
    yarn_beta_fast: float = option(
        -1.0, part="context", server="--yarn-beta-fast", variable="ARG_YARN_BETA_FAST"
    )
    yarn_beta_slow: float = option(
        -1.0, part="context", server="--yarn-beta-slow", variable="ARG_YARN_BETA_SLOW"
    )
    yarn_orig_ctx: int = option(
        0, part="context", server="--yarn-orig-ctx", variable="ARG_YARN_ORIG_CTX"
    )
    logits_all: bool = False
    embedding: bool = option(
        False, cli="--embeddings", group="served", help="serve embeddings and reranking too",
        server="--embedding --embeddings", variable="ARG_EMBEDDINGS",
    )
    offload_kqv: bool = option(
        True, part="context", cli="--offload-kqv", group="context",
        help="keep the KV cache with its layers, or in the host's memory [with them]",
        server="--kv-offload -kvo", variable="ARG_KV_OFFLOAD",
        server_off="--no-kv-offload -nkvo", variable_off="ARG_NO_KV_OFFLOAD",
    )
    flash_attn: bool | None = option(
        None, part="context", words={"auto": None, "on": True, "off": False},
        cli="--flash-attn", group="context",
        help="fused attention [off on the CPU, the engine's choice on a device]",
        server="-fa --flash-attn", variable="ARG_FLASH_ATTN",
    )
    op_offload: bool | None = option(
        None, part="context", none=False, cli="--op-offload", group="context",
        help="compute wide batches of layers in the host's memory on a device too: rows of a "
        "prompt and of a draft then differ by rounding",
        server="--op-offload", server_off="--no-op-offload",
    )
    swa_full: bool | None = option(
        None, part="context", none=True, server="--swa-full", variable="ARG_SWA_FULL"
    )
    no_perf: bool = False
    last_n_tokens_size: int = option(64, low=-1)
    lora_base: str | None = None
    lora_scale: float = option(1.0, low=-math.inf)
    lora_path: str | os.PathLike[str] | None = option(
        None, check=_file, cli="--lora", metavar="GGUF", group="served", help="a LoRA adapter"
    )
    numa: bool | int = False
    chat_format: str | None = None
    chat_handler: ChatHandler | None = option(None, in_files=False)
    draft_model: Any = option(None, in_files=False)
    tokenizer: Any = option(None, in_files=False)
    type_k: str | int | None = option(
        None, part="context", none="f16", numbers=KV_TYPES,
        server="-ctk --cache-type-k", variable="ARG_CACHE_TYPE_K",
    )
    type_v: str | int | None = option(
        None, part="context", none="f16", numbers=KV_TYPES,
        server="-ctv --cache-type-v", variable="ARG_CACHE_TYPE_V",
    )
    spm_infill: bool = option(False, server="--spm-infill")
    verbose: bool = option(
        False, cli="--verbose", group="threads", help="show the engine's messages",
        server="-v --verbose --log-verbose",
    )
    mmproj_path: str | os.PathLike[str] | None = option(
        None, check=_file, words={"auto": "auto", "none": None}, cli="--mmproj",
        cli_default="auto", metavar="GGUF", group="projector", server="-mm --mmproj",
        variable="ARG_MMPROJ",
        help="the projector of a model that sees, auto for one beside the model, or none",
    )
    mmproj_offload: bool = option(
        True, part="projector.use_gpu", cli="--mmproj-offload", group="projector",
        help="let the projector compute where the model does",
        server="--mmproj-offload", variable="ARG_MMPROJ_OFFLOAD",
        server_off="--no-mmproj-offload", variable_off="ARG_NO_MMPROJ_OFFLOAD",
    )
    image_min_tokens: int | None = option(
        None, low=1, part="projector", cli="--image-min-tokens", metavar="N", group="projector",
        help="minimum tokens of a picture, where a projector takes any size [the projector's]",
        server="--image-min-tokens", variable="ARG_IMAGE_MIN_TOKENS",
    )
    image_max_tokens: int | None = option(
        None, low=1, part="projector", cli="--image-max-tokens", metavar="N", group="projector",
        help="maximum tokens of a picture, likewise: fewer take less time and memory",
        server="--image-max-tokens", variable="ARG_IMAGE_MAX_TOKENS",
    )
    draft: str | os.PathLike[str] | Drafter | None = option(
        None, read=str,
        server="-md --model-draft --spec-draft-model", variable="ARG_SPEC_DRAFT_MODEL",
    )
    n_draft: int | None = option(
        None, low=0, part="draft.max_draft", cli="--n-draft", group="draft length",
        help="maximum number of tokens in a draft [the drafter's own]",
        server="--spec-draft-n-max --draft --draft-n --draft-max",
        variable="ARG_SPEC_DRAFT_N_MAX",
    )
    p_min: float | None = option(
        None, low=0, high=1, part="draft", cli="--p-min", metavar="P", group="draft length",
        help="of a draft in a file: stop below this probability; the controller is off "
        "[as the controller says]",
        server="--spec-draft-p-min --draft-p-min", variable="ARG_SPEC_DRAFT_P_MIN",
    )
    lookup: int | None = option(
        None, low=0, part="draft", cli="--lookup", metavar="N", group="draft length",
        help="of a draft in a file: copy where the last N tokens occurred before, without asking "
        "it; 0: never [5]",
    )
    controller: ControllerChoice = option(
        None, cli="--controller", choices=tuple(NAMES), group="draft length",
        help="how many tokens are drafted: as many as pay, --n-draft in every round, or none "
        "[profit]",
    )
    acceptance: Acceptance = option(
        "exact", choices=ACCEPTANCE, cli="--acceptance", cli_default=None, group="draft",
        help="how tokens of a smaller model are accepted at a temperature: exact; noise: both "
        "models draw by the same noise, which accepts more of a similar model; a seed gives the "
        "same text with any draft, and another than exact; distribution: the text depends on the "
        "draft [exact]",
    )
    repack: bool = option(True, part="model")
    n_parallel: int = option(
        1, low=1, high=MAX_SEQUENCES, cli="--parallel", cli_default=4, metavar="N", group="served",
        help="requests computed in parallel; the KV cache grows in proportion",
        server="-np --parallel", variable="ARG_N_PARALLEL",
    )
    max_waiting: int | None = option(
        None, low=0, cli="--max-waiting", cli_default=64, metavar="N", group="served",
        help="maximum queued requests; a further one gets a 429",
    )
    chat_template: str | None = option(
        None, server="--chat-template", variable="ARG_CHAT_TEMPLATE"
    )
    devices: Sequence[str] | None = option(
        None, part="model", cli="-dev --devices", metavar="NAME,...", group="target",
        help="devices that take layers, by their names in doctor [all]",
        server="-dev --device", variable="ARG_DEVICE",
    )
    draft_gpu_layers: int | None = option(
        None, words={"auto": -1, "all": -1}, cli="-ngld --draft-gpu-layers", metavar="N",
        group="layers", help="layers of the draft on devices [as -ngl; 0 with --rpc-servers]",
        server="--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft",
        variable="ARG_N_GPU_LAYERS_DRAFT",
    )
    draft_n_ctx: int | None = option(
        None, low=1, part="draft.n_ctx", cli="--draft-n-ctx", metavar="N", group="draft",
        help="context length of the draft model [as long as useful]",
    )
    rpc_servers: Sequence[str] | None = option(
        None, part="model", cli="--rpc-servers", metavar="HOST:PORT,...", group="layers",
        help="pyllama-spec rpc-server of other machines, for the target's layers: for all of them "
        "without -ngl; the draft stays here without -ngld",
        server="--rpc", variable="ARG_RPC",
    )
    rpc_timeout: float | None = option(
        None, cli="--rpc-timeout", metavar="S", group="layers",
        help="timeout of one answer of a server in seconds [300]",
    )
    prefix_cache_bytes: int | None = option(None, low=0, high=sys.maxsize)
    draft_memory: str | os.PathLike[str] | None = option(
        None, check=_file, part="draft.memory", cli="--draft-memory", metavar="FILE", group="draft",
        help="a store of texts to copy from, which this text is added to; made if missing, see "
        "the command memory",
    )
    media_hosts: Sequence[str] = option(
        (), check=check_hosts, cli="--media-hosts", metavar="HOST,...", group="served",
        help="hosts that pictures are fetched from where a chat names a URL [none]",
        server="--media-hosts",
    )
    media_path: str | os.PathLike[str] | None = option(
        None, check=_folder, cli="--media-path", metavar="DIR", group="served",
        help="a folder whose files a chat may name by a file: URL [none]", server="--media-path",
    )
    # fmt: on

    @classmethod
    def from_keywords(
        cls, model_path: str | os.PathLike[str], keywords: Mapping[str, Any]
    ) -> tuple[OpenOptions, list[str]]:
        """Reads the options and the unknown keywords of a Llama() call."""
        known = {name: value for name, value in keywords.items() if name in KEYWORDS}
        handler = known.get("chat_handler")
        # llama-cpp-python's handlers of pictures say where the projector is.
        if (path := getattr(handler, "clip_model_path", None)) is not None:
            text = known.get("chat_template") or getattr(handler, "CHAT_FORMAT", None)
            known |= {
                "mmproj_path": path, "mmproj_offload": getattr(handler, "use_gpu", True),
                "chat_handler": None, "chat_template": text,
                "chat_format": None if text else getattr(handler, "chat_format", None),
            }  # fmt: skip
        return cls(model_path, **known), [name for name in keywords if name not in known]

    def keywords(self) -> dict[str, Any]:
        """The options by name as given: Llama(**keywords) opens the same again."""
        return {name: getattr(self, name) for name in KEYWORDS}

    def attributes(self) -> dict[str, Any]:
        """The options that are attributes of a Llama, by attribute name."""
        shown_keywords = (name for name in KEYWORDS if name not in _NO_ATTRIBUTES)
        values = {name: getattr(self, name) for name in shown_keywords}
        return {**values, "split_mode": self.meant("split_mode")}

    def check(self) -> None:
        """Checks the values, and warns of those that have no effect."""
        if self.model_path == "":
            raise ModelLoadError('model_path="" is no file name; give the path of a .gguf file')
        for one in options_of(type(self)).values():
            if one.numbers is None and one.name != "controller":  # those are checked where used
                checked(one, getattr(self, one.name))
        if self.numa:
            warn(f"`numa={shown(self.numa)}` has no effect here")
        if self.tokenizer is not None and not getattr(self.tokenizer, "is_of_the_model", False):
            raise UnsupportedError(
                "is not the model's own vocabulary",
                param="tokenizer",
                value=self.tokenizer,
                remedy="leave it out",
            )
        if self.n_parallel > self.n_batch:
            raise ArgumentError(
                "n_parallel", self.n_parallel, f"at most `n_batch={self.n_batch}`: a round takes a "
                "token of each request",
            )  # fmt: skip
        if self.flash_attn is False and self.meant("split_mode") == "tensor":
            raise ArgumentError(
                "split_mode", "tensor", problem="needs flash attention, and `flash_attn` is off",
                remedy="leave `flash_attn` out, or choose `split_mode` layer",
            )  # fmt: skip
        if self.draft_memory is not None and self.lookup == 0:
            raise ArgumentError(
                "draft_memory", self.draft_memory, problem="needs a draft that looks texts up, but "
                "`lookup=0` disables that", remedy="leave one of them out",
            )  # fmt: skip
        if self.chat_handler is not None and not callable(self.chat_handler):
            raise ArgumentError("chat_handler", self.chat_handler, "a function")

    def meant(self, name: str) -> Any:
        """The value of an option for the engine: a name for a number, None for 0 and the like."""
        one, value = options_of(type(self))[name], getattr(self, name)
        if one.numbers is not None:
            value = _by_number(value, name, one.numbers)
        elif one.is_0_none and not isinstance(value, bool) and value == 0:
            return None
        return one.none if value is None else value

    def arguments(self, part: str) -> dict[str, Any]:
        """The options that a part takes, by its names for them."""
        found = {}
        for one in options_of(type(self)).values():
            owner, _, name = one.part.partition(".")
            if owner == part:
                found[name or one.name] = self.meant(one.name)
        return found

    def context_params(self) -> ContextParams:
        """The parameters of the target's context."""
        return ContextParams(**self.arguments("context"))

    def store_bytes(self) -> int:
        """The maximum bytes of stored prompt prefixes."""
        most = self.prefix_cache_bytes
        return min(_STORE_BYTES, memory_bytes() // 4) if most is None else most

    def adapters(self) -> list[tuple[str | os.PathLike[str], float]]:
        """The initial LoRA adapters."""
        return [] if self.lora_path is None else [(self.lora_path, float(self.lora_scale))]

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of engine.Model."""
        return self.arguments("model")

    def draft_options(self, *, progress: Progress | None, is_adaptive: bool) -> DraftOptions:
        """The options of the drafter; see DraftOptions."""
        # As many layers on the GPU as the target, and beside servers none: its step is short.
        n = self.draft_gpu_layers
        if n is None:
            n = 0 if self.rpc_servers is not None else self.n_gpu_layers
        is_here = n == 0 and self.rpc_servers is not None
        return DraftOptions(
            **self.arguments("draft"), progress=progress, is_adaptive=is_adaptive, n_gpu_layers=n,
            devices=None if is_here else self.devices,
            rpc_servers=None if is_here else self.rpc_servers,
        )  # fmt: skip


KEYWORDS = tuple(options_of(OpenOptions))


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


def warn_of_length(params: ContextParams, model: Model) -> None:
    """Warns of a context longer than the model was trained on, unless RoPE scaling is set."""
    info, n_ctx = model.info, params.n_ctx or 0
    scaled = params.rope_scaling or params.rope_freq_base or params.rope_freq_scale
    if n_ctx > info.n_ctx_train and not info.is_recurrent and not scaled:
        warn(
            f"`n_ctx={n_ctx}` is more than the {info.n_ctx_train} tokens that the model was "
            "trained with: its text beyond them may make no sense",
        )


def context_numbers(
    model: Model, params: ContextParams, values: Mapping[str, Any]
) -> SimpleNamespace:
    """The parameters of a model's context; `values` are those of Llama's keywords."""
    found: dict[str, Any] = {"embeddings": values["embedding"], "no_perf": values["no_perf"]}
    for one in options_of(OpenOptions).values():
        owner, _, name = one.part.partition(".")
        if owner == "context":
            value = getattr(params, name or one.name)
            numbers = {known: number for number, known in (one.numbers or {}).items()}
            found[one.name] = numbers[value] if numbers else value
    n_threads = params.n_threads or default_n_threads()
    n_ctx = params.n_ctx or model.info.n_ctx_train
    n_batch = min(params.n_batch, n_ctx)
    return SimpleNamespace(**{
        **found, "n_ctx": n_ctx, "n_batch": n_batch, "n_ubatch": min(params.n_ubatch, n_batch),
        "n_seq_max": params.n_seq_max, "n_threads": n_threads,
        "n_threads_batch": params.n_threads_batch or n_threads,
    })  # fmt: skip


def _by_number(value: object, name: str, known: Mapping[int, Any]) -> Any:
    """The value for a number of the engine's; other values unchanged."""
    if isinstance(value, str):
        one_of(value, known.values(), name)
    if value is None or isinstance(value, (str, bool)) or not hasattr(value, "__index__"):
        return value
    number = integer(value, name)
    if number not in known:
        raise ArgumentError(name, number, f"one of {', '.join(map(str, known))}")
    return known[number]
