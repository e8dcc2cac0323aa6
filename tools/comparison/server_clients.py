"""Runs third-party clients against `pyllama-spec serve`, each in its own environment.

    python -m tools.comparison.server_clients -m MODEL [CLIENT ...]

The clients are installed from the index. A client gets what its call promises: a text, pieces of a
stream, a tool call with arguments of its schema, an object of the form, a vector; a small model may
answer a question badly. The folder keeps the environments, and results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CALLS = Path(__file__).with_name("server_client_calls.py")
# The packages to install for each client; the first is the client itself.
PACKAGES = {
    "langchain-openai": ("langchain-openai",),
    "litellm": ("litellm",),
    "pydantic-ai": ("pydantic-ai-slim[openai,anthropic]",),
}


def environment(client: str, folder: Path) -> Path:
    """The Python of a client's environment, which is created if it is missing."""
    home = folder / client
    python = home / "bin" / "python"
    if not (home / ".made").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*command, *PACKAGES[client]], check=True)
        (home / ".made").touch()
    return python


def version(client: str, python: Path) -> str:
    """The version of a client's first package."""
    name = PACKAGES[client][0].partition("[")[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return f"{name} {done.stdout.strip()}"


class Server:
    """Runs `pyllama-spec serve` on a free port until close()."""

    def __init__(self, model: Path, log: Path) -> None:
        self._log = log.open("ab")
        command = [
            sys.executable, "-m", "pyllama_spec.cli", "serve", "-m", str(model), "--port", "0",
            "-d", "prompt-lookup", "--n-ctx", "4096", "--embeddings", "--pooling", "mean",
            "--alias", "local",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if " at http" not in line:
            raise RuntimeError(f"the server did not start: {log} says why")
        self.url = line.split(" at ")[1].split(",")[0].strip()

    def close(self) -> None:
        """Stops the server."""
        self._process.terminate()
        self._process.wait(60)
        self._log.close()


def asked(client: str, python: Path, url: str, folder: Path) -> dict[str, Any]:
    """Runs a client's calls; returns their results."""
    out = folder / f"{client}.json"
    out.unlink(missing_ok=True)
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [str(python), str(CALLS), client, url, "local", str(out)]
    with (folder / f"{client}.log").open("wb") as log:
        done = subprocess.run(command, env=variables, check=False, stdout=log, stderr=log)
    if not out.exists():
        said = (folder / f"{client}.log").read_text(errors="replace")[-600:]
        return {"begin": {"failed": f"ended with {done.returncode}: {said}"}}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def main() -> int:
    """Runs the clients; returns 1 if a call failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", choices=[[], *PACKAGES])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "server-clients")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    server = Server(options.model, folder / "server.log")
    try:
        for client in options.clients or PACKAGES:
            python = environment(client, folder)
            calls = asked(client, python, server.url, folder)
            results[client] = {"version": version(client, python), "calls": calls}
            n_failed = sum("failed" in one for one in calls.values())
            print(f"{client}: {len(calls) - n_failed} of {len(calls)}", flush=True)
            for name, one in calls.items():
                print(f"  {name}: {one.get('came') or 'FAILED: ' + one['failed']}", flush=True)
            kept.write_text(json.dumps(results, indent=1))
    finally:
        server.close()
    return int(any("failed" in one for r in results.values() for one in r["calls"].values()))


if __name__ == "__main__":
    sys.exit(main())
