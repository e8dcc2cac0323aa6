"""rpc-server: lends this machine's devices and memory to other machines for layers."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from pyllama_spec.cli.options import argument
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.rpc import DEFAULT_PORT, RpcServer
from pyllama_spec.options import words_of


class _Terminated(BaseException):
    """The process received SIGTERM."""


def add_rpc_server(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `rpc-server`."""
    parser = commands.add_parser(
        "rpc-server", help="hold and compute layers for a model on another machine",
        epilog="The protocol has no authentication and no encryption: stay on 127.0.0.1, and let "
        "clients come through a tunnel (docs/rpc.md).",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="the port; 0: any free one")
    parser.add_argument(
        "-dev", "--devices", type=argument(words_of), default=None, metavar="NAME,...",
        help="devices to offer, named as in doctor [the GPUs, or else the CPU]",
    )  # fmt: skip
    parser.add_argument(
        "-t", "--threads", dest="n_threads", type=int, metavar="THREADS",
        help="CPU threads for each client [the physical cores]",
    )  # fmt: skip
    parser.add_argument(
        "--verbose", action="store_true", help="log clients that connect and disconnect"
    )
    parser.set_defaults(run=_run_rpc_server)


def _run_rpc_server(args: argparse.Namespace) -> int:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _Terminated

    count(args.port, "port", 0, 65535)
    with RpcServer(
        args.host, args.port, devices=args.devices, n_threads=args.n_threads,
        on_note=_say if args.verbose else None,
    ) as server:  # fmt: skip
        before = signal.signal(signal.SIGTERM, stop)
        try:
            if not server.is_loopback:
                _say(
                    f"warning: {server.host} is not loopback, and the protocol has no "
                    "authentication: any client that reaches the port can use this machine's "
                    "memory, read what is computed, and may do worse"
                )
            print(f"ready: {server.address}, {', '.join(server.devices)}", flush=True)
            server.serve()
        except (KeyboardInterrupt, _Terminated):
            pass
        finally:
            signal.signal(signal.SIGTERM, before)
    return 0


def _say(line: str) -> None:
    print(f"rpc-server: {line}", file=sys.stderr, flush=True)
