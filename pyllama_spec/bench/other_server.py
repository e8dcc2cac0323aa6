"""Runs in the other system's interpreter, and imports nothing of this package.

Its argument is a JSON object (see beside.py). It serves OpenAI's API at the given port of this
machine until its standard input ends, so that it never outlives the program that started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

_TYPES = {
    "model": "DRAFT_SIMPLE", "mtp": "DRAFT_MTP", "eagle3": "DRAFT_EAGLE3",
    "dflash": "DRAFT_DFLASH", "dspark": "DRAFT_DSPARK", "lookup": "NGRAM_SIMPLE",
}  # fmt: skip


def serve_llama_server(job: dict[str, Any]) -> None:
    """llama.cpp's own server, by the package xllamacpp."""
    import xllamacpp  # type: ignore[import-not-found]

    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.verbosity = job["model"], job["port"], 3
    params.n_ctx, params.n_parallel = job["n_ctx"] * job["n_parallel"], job["n_parallel"]
    params.n_gpu_layers, params.warmup = job["n_gpu_layers"], False
    if job["cache_ram_mib"] is not None:
        params.cache_ram_mib = job["cache_ram_mib"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["n_threads"]
    params.fit_params = False
    if job["draft_kind"] != "none":
        name = f"COMMON_SPECULATIVE_TYPE_{_TYPES[job['draft_kind']]}"
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
        params.load_mtp = job["draft_kind"] == "mtp"
        draft = params.speculative.draft
        if job["draft"]:
            draft.mparams.path = job["draft"]
        if job["n_draft"] is not None:
            draft.n_max = params.speculative.ngram_simple.size_m = job["n_draft"]
        if job["p_min"] is not None:
            draft.p_min = job["p_min"]
        draft.n_gpu_layers = job["draft_gpu_layers"]
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = job["n_threads"]
    server = xllamacpp.Server(params)
    while server.listening_address:  # it is what keeps the server: its threads end with it
        threading.Event().wait()


def serve_llama_cpp_python(job: dict[str, Any]) -> None:
    """llama-cpp-python's server."""
    import uvicorn
    from llama_cpp.server.app import create_app  # type: ignore[import-not-found]
    from llama_cpp.server.settings import (  # type: ignore[import-not-found]
        ModelSettings,
        ServerSettings,
    )

    options: dict[str, Any] = {
        "model": job["model"], "n_ctx": job["n_ctx"], "n_threads": job["n_threads"],
        "n_threads_batch": job["n_threads"], "n_gpu_layers": job["n_gpu_layers"], "verbose": False,
    }  # fmt: skip
    if job["draft_kind"] == "lookup":
        options["draft_model"] = "prompt-lookup-decoding"
        if job["n_draft"] is not None:
            options["draft_model_num_pred_tokens"] = job["n_draft"]
    app = create_app(
        server_settings=ServerSettings(host="127.0.0.1", port=job["port"]),
        model_settings=[ModelSettings(**options)],
    )
    uvicorn.run(app, host="127.0.0.1", port=job["port"], log_level="error")


def _end_with_the_parent() -> None:
    while os.read(0, 1 << 16):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    known = {"llama-server": serve_llama_server, "llama-cpp-python": serve_llama_cpp_python}
    the_job = json.loads(sys.argv[1])
    known[the_job["system"]](the_job)
