"""Sizes and options of the tiny test models."""

from __future__ import annotations

from dataclasses import dataclass

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyConfig:
    """All settings that determine the bytes of a tiny model, besides the architecture's code.

    Fields after `perturb_layer` are the keyword `extra` options of `build`.
    """

    arch: str
    seed: int = 0
    n_layer: int = 4
    n_vocab: int = 320
    n_ctx_train: int = 65536
    output_scale: float = 16.0
    """Standard deviation of the logits of ordinary tokens, whatever the architecture."""
    perturb_layer: int | None = None
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 128
    n_expert: int = 4
    n_expert_used: int = 2
    n_ff_exp: int = 64
    sliding_window: int = 16
    attention_interval: int = 2
    """The interval of the attention layers of qwen35 and its relatives."""
    state_size: int = 0
    state_heads: int = 0
    """0: the builder's default, as for `state_size`."""
    conv_kernel: int = 4
    """The convolution kernel of recurrent layers; lfm2's is one less."""
    norm_eps: float = 1e-5
    rope_freq_base: float = 10000.0
    quantised: str = ""
    """gguf's name of the type of all matrices that it fits, except the embedding; "": F32."""
    suppress_special: bool = True
    """Keep control tokens, such as EOS, far from the argmax, so that generation does not end."""
    chat_template: str | None = CHATML_TEMPLATE
    shuffle: int = 0
    """The seed of vocab.shuffled(), which gives the same texts other ids; 0: none."""
    n_heads: int = 0
    """The number of MTP heads after the layers, for the architectures in mtp.HEADS."""
    control_names: tuple[str, ...] = ()
    """The names of control tokens, in place of the first padding words."""

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def n_embd_kv(self) -> int:
        """Width of the K (or V) projection."""
        return self.head_dim * self.n_head_kv
