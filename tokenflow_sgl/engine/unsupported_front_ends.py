"""Which front ends of SGLang the scheduler does not go together with, as its own part is missing.

Rates are checked, live streams are changed and token deposits are delivered in the process of
SGLang's HTTP server in Python. Where another one serves, rates are checked in the scheduler.
"""

from __future__ import annotations

from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.engine.tenant_setting import TENANTS_OFF
from tokenflow_sgl.engine.unsupported import has_workers


def check_app(server_args: ServerArgs, named: str | None, ours: str | None) -> None:
    """Raise `UnsupportedError` if tokenizer workers are to serve another application than `ours`.

    named: The application that the environment names; None: SGLang's own. ours: None: this SGLang's
    workers serve none but its own.
    """
    if not has_workers(server_args) or in_rust():  # its workers are threads
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


RUST = "SGLANG_RUST_SERVER=1"
OFF_IN_RUST = (
    "the scheduler checks rates in custom_params, and a bad one ends its request with an error; "
    "off are rates in /v1/completions, /tokenflow/streams, token deposits, objectives in headers, "
    "tokenflow_headroom_tokens and tokenflow_expected_wait_s in /v1/loads, refusals, and the "
    "notice of text that parsers hold back"
)
"""What is different behind SGLang's front end in Rust."""


def in_rust() -> bool:
    """Whether SGLang's server in Rust takes the place of that in Python."""
    from sglang.srt.environ import envs  # only here: the doctor's short import comes first

    return bool(envs.SGLANG_RUST_SERVER.get())


def check_rust() -> None:
    """Raise `UnsupportedError` on an SGLang whose server in Rust was not tried."""
    if in_rust() and not at_least("0.5.23"):
        raise UnsupportedError(
            f"--scheduler tokenflow does not work with {RUST} on this SGLang: it was tried on "
            "0.5.23; unset the variable, or install that version."
        )


def without_python(server_args: ServerArgs) -> str | None:
    """What keeps SGLang's HTTP server in Python from serving; None: it serves."""
    if in_rust():
        return RUST
    names = ("smg_grpc_mode", "grpc_mode")
    chosen = next((name for name in names if getattr(server_args, name, False)), None)
    return None if chosen is None else f"--{chosen.replace('_', '-')}"


def check_tenants(server_args: ServerArgs, config: TokenFlowConfig) -> None:
    """Raise `UnsupportedError` if tenants are to be told apart and nothing would do so."""
    other = without_python(server_args)
    if other is not None and config.tenant_by != TENANTS_OFF:
        raise UnsupportedError(
            f"--tokenflow-tenant-by does not work with {other}: who asks is found in SGLang's HTTP "
            "server in Python, which does not run then; remove one of the two."
        )


def check_deposits(server_args: ServerArgs, config: TokenFlowConfig) -> None:
    """Raise `UnsupportedError` if token deposits are asked for and nothing would deliver them."""
    other = without_python(server_args)
    if other is None:
        return
    known = config.known_classes.known
    ours = [f"deposit = true of the class {name}" for name in sorted(known) if known[name].deposit]
    if config.deposit:
        ours.insert(0, "--tokenflow-deposit")
    if ours:
        raise UnsupportedError(
            f"{ours[0]} does not work with {other}: token deposits are delivered in SGLang's HTTP "
            "server in Python, which does not run then; remove one of the two."
        )


def check_refusals(server_args: ServerArgs, config: TokenFlowConfig) -> None:
    """Raise `UnsupportedError` if requests are to be refused and nothing would refuse them."""
    known = config.known_classes.known
    ours = [f"max_wait of the class {name}" for name in sorted(known) if known[name].max_wait]
    if config.working_set.max_wait:
        ours.insert(0, "--tokenflow-max-wait")
    found = refuses_none(server_args, config)
    if ours and found is not None:
        option, reason = found
        raise UnsupportedError(
            f"{ours[0]} does not work with {option}: {reason}; remove one of the two."
        )


def refuses_none(server_args: ServerArgs, config: TokenFlowConfig) -> tuple[str, str] | None:
    """With which option no request can be refused by its wait, and why; None: it can."""
    other = without_python(server_args)
    if other is not None:
        return other, (
            "requests are refused in SGLang's HTTP server in Python, which does not run then"
        )
    if getattr(server_args, "disaggregation_mode", "null") == "decode":
        return "--disaggregation-mode decode", (
            "first tokens come from the prefill server, whose queue a decode server does not see"
        )
    if config.policy != "working-set":
        return f"--tokenflow-policy {config.policy}", "the expected wait is that of working-set"
    return None
