"""A model file: its weights, its metadata and its vocabulary."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pyllama_spec.engine.binding import Handle, Owner, check, ffi, keep_error, lib
from pyllama_spec.engine.checks import instance, int32, one_of, shares_of, text
from pyllama_spec.engine.identity import digest_of, stamp_of
from pyllama_spec.engine.load_errors import load_error, not_a_model
from pyllama_spec.engine.model_info import DraftBlock, HeadWeights, ModelInfo
from pyllama_spec.engine.overrides import Override, check_fits, facts_of, raw_overrides
from pyllama_spec.engine.rpc import server_names
from pyllama_spec.engine.system import device_names
from pyllama_spec.engine.vocab import Vocab
from pyllama_spec.errors import (
    ArgumentError,
    ModelLoadError,
    UnsupportedError,
    warn,
)
from pyllama_spec.gguf.header import check_header

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
SplitMode = Literal["none", "layer", "row", "tensor"]
Progress = Callable[[float], None]
# In the place of a layer's number: the rows that the model's own MTP head reads. After the final
# norm, before it, or the raw stream: whatever the graph of the architecture says.
HEAD_ROWS: int = lib.LLAMA_SPEC_HEAD_ROWS


@ffi.def_extern(onerror=lambda *error: not keep_error(*error))  # type: ignore[untyped-decorator]
def pyllama_spec_on_progress(fraction: float, user: Any) -> bool:
    """Called by the engine during a load; False cancels the load."""
    progress: Progress | None = ffi.from_handle(user)[0]
    if progress is not None:
        progress(fraction)
    return True


class Model(Owner):
    """A loaded GGUF file. Contexts keep the weights alive, so the model may be closed first.

    Args:
        path: the file; for a split model, its first part.
        n_gpu_layers: how many layers go to the GPU; -1 for all, 0 for the CPU alone. A warning says
            if fewer were placed.
        devices: names of the devices for the layers, as engine.devices() reports them; None for
            all.
        rpc_servers: "host:port" of servers whose devices take layers too, before this machine's;
            see docs/rpc.md. Their names look like "RPC0[host:port]".
        main_gpu: the GPU to use when nothing is split.
        split_mode: how to spread a model over several GPUs; not "row" or "tensor" with servers.
        tensor_split: the share of each GPU.
        use_mmap: maps the file instead of reading it.
        use_mlock: keeps the model in RAM.
        repack: copies weights to memory in an order that our kernels read faster, if there is
            enough; info.repacked_bytes says how many. False leaves the file mapped.
        vocab_only: loads the vocabulary without the weights.
        load_mtp: loads the file's MTP head too, if it has one; info.has_head says whether it can
            draft.
        kv_overrides: new values for keys of the file; overrides.py lists the keys.
        progress: called with 0.0 .. 1.0 during the load.

    Raises:
        ModelLoadError: the file is missing, unreadable or not a model that the engine can load.
        ArgumentError: a parameter is out of range.
        RemoteError: a server cannot be reached, or was lost during the load.
        UnsupportedError: split_mode does not work with rpc_servers, or with the file.
        OutOfMemoryError: the weights do not fit into the memory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_gpu_layers: int = 0,
        devices: Sequence[str] | None = None,
        rpc_servers: Sequence[str] | None = None,
        main_gpu: int = 0,
        split_mode: SplitMode = "layer",
        tensor_split: Sequence[float] | None = None,
        use_mmap: bool = True,
        use_mlock: bool = False,
        repack: bool = True,
        vocab_only: bool = False,
        load_mtp: bool = False,
        kv_overrides: Mapping[str, Override] | None = None,
        progress: Progress | None = None,
    ) -> None:
        instance(path, (str, os.PathLike), "model_path")
        self.path = Path(path)
        self.adapter_lock = threading.Lock()  # of the engine's list of adapters
        self._stamp = stamp_of(self.path)
        one_of(split_mode, _SPLIT_MODES, "split_mode")
        check_header(self.path)
        params, held = _raw_params(
            n_gpu_layers=n_gpu_layers, devices=devices, rpc_servers=rpc_servers, main_gpu=main_gpu,
            split_mode=split_mode, tensor_split=tensor_split, kv_overrides=kv_overrides,
            use_mmap=use_mmap, use_mlock=use_mlock, repack=repack,
            vocab_only=vocab_only, load_mtp=load_mtp,
        )  # fmt: skip
        self._overrides = facts_of(kv_overrides or {})
        self._handle = Handle(
            self._load(params, progress),
            lib.llama_spec_model_free,
            f"the model {self.path} is closed; load it again",
        )
        del held  # the engine has read them
        self._raw = ffi.new("struct llama_spec_model_info *")
        check(lib.llama_spec_model_get_info(self.handle, self._raw), "cannot read the model")
        self.info = self._read_info()
        try:
            check_fits(kv_overrides or {}, self.info.arch, self.info.n_vocab)
        except ArgumentError:
            self._handle.close()
            raise
        # How many layers each device has, the output counted as one; {} of a vocabulary.
        self.placement = placement(self._handle.pointer)
        n_layers = sum(self.placement.values())
        warn_of_fewer(self.path.name, n_gpu_layers, self.info.n_device_layers, n_layers)
        self.vocab = Vocab(self._handle, self.info.n_vocab, keeps_all=self._keeps_text())

    def _load(self, params: Any, progress: Progress | None) -> Any:
        out = ffi.new("llama_spec_model **")
        user = ffi.new_handle([progress])
        params.progress, params.progress_user = lib.pyllama_spec_on_progress, user
        code = lib.llama_spec_model_load(os.fsencode(self.path), params, out)
        start = f"cannot load {self.path}"
        try:
            check(code, start)
        except ModelLoadError as error:
            lib.llama_spec_model_free(out[0])
            raise not_a_model(start, self.path) or load_error(
                error, start, has_overrides=params.n_overrides > 0
            ) from None
        except BaseException:
            lib.llama_spec_model_free(out[0])
            raise
        return out[0]

    def _read_info(self) -> ModelInfo:
        values = {name: getattr(self._raw, name) for name in ModelInfo.__dataclass_fields__}
        return ModelInfo(**{**values, "arch": ffi.string(self._raw.arch).decode()})

    def __repr__(self) -> str:
        if self.is_closed:
            return f"<Model {self.path.name!r}, closed>"
        place = f", on {in_words(self.placement)}" if self.placement else ""
        return f"<Model {self.path.name!r}: {self.description}{place}, open>"

    @property
    def is_on_gpu(self) -> bool:
        """Whether some of its layers are on a GPU, or on another machine."""
        return self.info.n_device_layers > 0

    @property
    def description(self) -> str:
        """Architecture, parameters and file type, such as "llama 135M Q4_0"."""
        buf = ffi.new("char[]", 256)
        check(lib.llama_spec_model_desc(self.handle, buf, 256), "cannot describe the model")
        words = str(ffi.string(buf).decode(errors="replace")).split(" ", 2)
        if len(words) < 3:
            return f"{self.info.arch} vocabulary"
        # The engine names a size by the number of layers: "256M" for one of 135 million.
        return f"{words[0]} {self.info.size} {words[2]}"

    @property
    def metadata(self) -> dict[str, str]:
        """The file's keys and values as text; the engine omits arrays."""
        out: dict[str, str] = {}
        for i in range(lib.llama_spec_model_n_meta(self.handle)):
            key = self._text(lib.llama_spec_model_meta_key, i)
            out[key] = self._text(lib.llama_spec_model_meta_value, i)
        return out

    def _keeps_text(self) -> bool:
        """Whether the tokenizer preserves all of a text except white space.

        "bert" and "t5" make one token of unknown text, however long it is.
        """
        return self.metadata.get("tokenizer.ggml.model") in ("llama", "gpt2")

    @cached_property
    def identity(self) -> str:
        """A digest of the files and kv_overrides: it differs for other weights.

        identity.py describes which parts of a large file count. A file written since the load
        equals no other.
        """
        changed = None if stamp_of(self.path) == self._stamp else os.urandom(16).hex()
        return digest_of(self.path, self._overrides, changed)

    def _text(self, function: Any, i: int) -> str:
        size = 256
        while True:
            buf = ffi.new("char[]", size)
            n: int = function(self.handle, i, buf, size)
            check(min(n, 0), "cannot read the metadata")
            if n < size:
                return str(ffi.string(buf).decode(errors="replace"))
            size = n + 1

    def chat_template(self, name: str | None = None) -> str | None:
        """The Jinja text of the model's chat template; None if it has none."""
        raw = ffi.NULL if name is None else text(name, "name").encode()
        template = lib.llama_spec_model_chat_template(self.handle, raw)
        return None if template == ffi.NULL else str(ffi.string(template).decode(errors="replace"))

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The target layers whose inputs a draft reads, in its order; () for other models."""
        n = self.info.n_target_layers
        out = ffi.new("int32_t[]", n)
        check(lib.llama_spec_model_target_layers(self.handle, out), "cannot read the draft")
        return tuple(ffi.unpack(out, n))

    @property
    def draft_block(self) -> DraftBlock | None:
        """The block of a draft that predicts several tokens at once; None for other models."""
        raw = self._raw.block
        if not raw.n_slots:
            return None
        return DraftBlock(
            raw.n_slots, raw.mask_id, raw.n_window or None, raw.guesses_behind, raw.has_confidence
        )

    @property
    def is_encoder(self) -> bool:
        """Whether the model gives embeddings of texts and cannot generate."""
        is_causal = self.metadata.get(f"{self.info.arch}.attention.causal", "true") != "false"
        return not self.info.has_decoder or not is_causal

    @property
    def head_weights(self) -> HeadWeights | None:
        """The MTP head that load_mtp loaded; None for other models."""
        raw = self._raw
        if not raw.head_bytes:
            return None
        return HeadWeights(raw.head_bytes, ffi.string(raw.head_type).decode())

    def check_draft_of(self, target: Model) -> None:
        """Raises unless this is a draft that was made for the target. Makes no context."""
        code = lib.llama_spec_model_check_draft(self.handle, target.handle)
        check(code, f"{self.path.name} cannot draft for {target.path.name}")

    def check_layer_inputs(self, layers: Sequence[int]) -> None:
        """Raises unless a context of this model can give the inputs of these layers.

        Args:
            layers: 0 .. n_layer. "Input of layer k" is the residual stream that enters layer k;
                n_layer is the output of the last layer, before the final norm. HEAD_ROWS means the
                rows that the model's MTP head reads.

        Raises:
            ArgumentError: a layer does not exist.
            UnsupportedError: the architecture does not expose it; the message gives the reason.
        """
        ids = ffi.new("int32_t[]", [int32(layer, "layer") for layer in layers] or [0])
        code = lib.llama_spec_model_probe_layers(self.handle, ids, len(layers))
        check(code, f"cannot take layer inputs {list(layers)} of {self.path.name}")

    def row_width(self, layer: int) -> int:
        """The width of a row of a layer's inputs, or of HEAD_ROWS."""
        return self.info.n_embd_out if layer == HEAD_ROWS else self.info.n_embd


def most_heads(arch: str) -> int:
    """The maximum number of MTP heads of an architecture that drafts may use: 0, 1, or no limit."""
    n: int = lib.llama_spec_most_heads(arch.encode())
    return n


def check_arguments(**arguments: Any) -> None:
    """Checks arguments of Model() by name, as far as that needs no file."""
    _raw_params(**arguments)


def _raw_params(
    *,
    n_gpu_layers: int,
    devices: Sequence[str] | None,
    rpc_servers: Sequence[str] | None,
    main_gpu: int,
    split_mode: SplitMode,
    tensor_split: Sequence[float] | None,
    kv_overrides: Mapping[str, Override] | None,
    **flags: bool,
) -> tuple[Any, tuple[Any, ...]]:
    """The engine's struct of the arguments of Model(), and what to keep until it has read them."""
    one_of(split_mode, _SPLIT_MODES, "split_mode")
    params = ffi.new("struct llama_spec_model_params *")
    params.n_gpu_layers = int32(n_gpu_layers, "n_gpu_layers")
    params.main_gpu = int32(main_gpu, "main_gpu")
    params.split_mode = _SPLIT_MODES[split_mode]
    for name, flag in flags.items():
        instance(flag, bool, name)
        setattr(params, name, flag)
    split = shares_of(tensor_split)
    shares = ffi.new("float[]", split)
    if split:
        params.tensor_split, params.n_tensor_split = shares, len(split)
    places = _name_places(params, devices, rpc_servers)
    params.overrides, kept = raw_overrides({} if kv_overrides is None else kv_overrides)
    params.n_overrides = len(kv_overrides or {})
    return params, (shares, places, kept)


def _name_places(
    params: Any, devices: Sequence[str] | None, rpc_servers: Sequence[str] | None
) -> tuple[Any, ...]:
    """Sets which devices take layers; the caller keeps the result while the engine reads it."""
    names, servers = device_names(devices), server_names(rpc_servers)
    if servers and params.n_gpu_layers == 0:
        raise ArgumentError(
            "n_gpu_layers", 0, problem="puts no layer on the `rpc_servers`",
            remedy="give the number of their layers, or -1 for all",
        )  # fmt: skip
    if servers and params.split_mode in (_SPLIT_MODES["row"], _SPLIT_MODES["tensor"]):
        raise UnsupportedError(
            "split_mode='row' and 'tensor' split layers, which rpc_servers do not support: give "
            "'layer', or 'none' for one device"
        )
    raw_names, raw_servers = ffi.new("char *[]", names), ffi.new("char *[]", servers)
    params.devices, params.n_devices = raw_names, len(names)
    params.servers, params.n_servers = raw_servers, len(servers)
    return names, servers, raw_names, raw_servers


def placement(handle: Any) -> dict[str, int]:
    """The number of layers by device, the output included; {} for a vocabulary."""
    layers: dict[str, int] = {}
    name, n_layers = ffi.new("char **"), ffi.new("int32_t *")
    while True:
        code = lib.llama_spec_model_device(handle, len(layers), name, n_layers)
        check(code, "cannot read where the layers lie")
        if name[0] == ffi.NULL:
            return layers
        layers[ffi.string(name[0]).decode(errors="replace")] = n_layers[0]


def in_words(placed: dict[str, int]) -> str:
    """The placement in words: "the CPU", "Vulkan0", "CPU 12 layers, Vulkan0 19"."""
    if len(placed) == 1:
        only = next(iter(placed))
        return "the CPU" if only == "CPU" else only
    first, *rest = (f"{name} {n}" for name, n in placed.items())
    return ", ".join([f"{first} layers", *rest])


def warn_of_fewer(name: str, n_gpu_layers: int, n_placed: int, n_layers: int) -> None:
    """Warns if fewer layers are on devices than requested."""
    n_wanted = n_layers if n_gpu_layers < 0 else min(n_gpu_layers, n_layers)
    if n_placed >= n_wanted:
        return
    why = "" if lib.llama_spec_supports_gpu() else ": this build finds no GPU (see doctor)"
    where = "all are on the CPU" if not n_placed else f"{n_placed} of them are there"
    warn(
        f"`n_gpu_layers={n_gpu_layers}` puts {n_wanted} layers of {name} on a device, "
        f"but {where}{why}",
    )
