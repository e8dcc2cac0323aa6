"""DFlash drafts whose sizes, windows or types no layer can have: refused, and named."""

from __future__ import annotations

import numpy as np

from pyllama_spec.errors import ModelLoadError

from .cases_dflash import _key, _use
from .harness import CaseList

CASES = CaseList()

_HEADS = "dflash.attention.head_count"
CASES.table(
    "alike",
    {
        "heads": (_key("attention.head_count", [4, 8]), ModelLoadError, f"{_HEADS} differs"),
        "no_heads": (_key("attention.head_count", [4, 0]), ModelLoadError, _HEADS),
        "kv_heads": (
            _key("attention.head_count_kv", [2, 4]), ModelLoadError, f"{_HEADS}_kv differs",
        ),
        "no_kv_heads": (_key("attention.head_count_kv", [2, 0]), ModelLoadError, f"{_HEADS}_kv"),
        "widths": (
            _key("feed_forward_length", [96, 64]), ModelLoadError, "feed_forward_length differs",
        ),
        "window_2_31": (
            _key("attention.sliding_window", 2**31, sliding_window=8), ModelLoadError,
            "dflash.attention.sliding_window is 2147483648",
        ),
        "integer_weights": (
            _use(lambda t: t.update({"fc.weight": t["fc.weight"].astype(np.int32)})),
            ModelLoadError, "fc.weight is of type i32",
        ),
        "double_weights": (
            _use(lambda t: t.update({"fc.weight": t["fc.weight"].astype(np.float64)})),
            ModelLoadError, "fc.weight is of type f64",
        ),
        "half_norm": (
            _use(lambda t: t.update(
                {"enc.output_norm.weight": t["enc.output_norm.weight"].astype(np.float16)}
            )),
            ModelLoadError, "enc.output_norm.weight is of type f16",
        ),
    },
)  # fmt: skip
