"""Which front ends of SGLang the scheduler does not go together with, as its own part is missing.

Rates are checked, live streams are changed and token deposits are delivered in the process of
SGLang's HTTP server.
"""

from __future__ import annotations

from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.unsupported import has_workers


def check_app(server_args: ServerArgs, named: str | None, ours: str | None) -> None:
    """Raise `UnsupportedError` if tokenizer workers are to serve another application than `ours`.

    named: The application that the environment names; None: SGLang's own. ours: None: this SGLang's
    workers serve none but its own.
    """
    if not has_workers(server_args):
        return
    if ours is None:
        raise UnsupportedError(
            "--scheduler tokenflow does not work with --tokenizer-worker-num above 1 on this "
            "SGLang: rates are checked in an application of ours, which its workers cannot serve "
            "before 0.5.23; remove the option, or install that version."
        )
    if named not in (None, ours):
        raise UnsupportedError(
            "--scheduler tokenflow does not work with --tokenizer-worker-num above 1 and "
            f"SGLANG_HTTP_SERVER_APP_PATH={named}: rates are checked in the application that the "
            "workers serve; unset one of the two."
        )


def check_rust(rust_server: bool) -> None:
    """Raise `UnsupportedError` if SGLang's server in Rust takes the place of that in Python."""
    if rust_server:
        raise UnsupportedError(
            "--scheduler tokenflow does not work with SGLANG_RUST_SERVER=1: rates are checked and "
            "live streams are changed in SGLang's HTTP server in Python, which does not run then; "
            "unset one of the two."
        )


def grpc_alone(server_args: ServerArgs) -> str | None:
    """The option by which SGLang serves gRPC in place of HTTP; None: it serves HTTP."""
    names = ("smg_grpc_mode", "grpc_mode")
    chosen = next((name for name in names if getattr(server_args, name, False)), None)
    return None if chosen is None else f"--{chosen.replace('_', '-')}"


def check_deposits(server_args: ServerArgs, config: TokenFlowConfig) -> None:
    """Raise `UnsupportedError` if token deposits are asked for and nothing would deliver them."""
    grpc = grpc_alone(server_args)
    if grpc is None:
        return
    known = config.known_classes.known
    ours = [f"deposit = true of the class {name}" for name in sorted(known) if known[name].deposit]
    if config.deposit:
        ours.insert(0, "--tokenflow-deposit")
    if ours:
        raise UnsupportedError(
            f"{ours[0]} does not work with {grpc}: token deposits are "
            "delivered in SGLang's HTTP server, which does not run then; remove one of the two."
        )
