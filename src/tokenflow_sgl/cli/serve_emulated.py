"""``tokenflow serve-emulated``: real SGLang with the timing of a device that is not there."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tokenflow_sgl.cli.extras import need


def serve_emulated(
    device: Annotated[
        str, typer.Option(help="Device to emulate; `tokenflow profile list` shows them.")
    ] = "h200",
    model: Annotated[str, typer.Option(help="Model to emulate.")] = "llama3-8b",
    profile: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Device profile to use instead, made by `tokenflow profile fit` or `show --save`.",
        ),
    ] = None,
    time_dilation: Annotated[
        str,
        typer.Option(
            metavar="FACTOR|auto",
            help="Wall-clock seconds per emulated second. auto: what this machine needs to keep "
            "up, at least 1. `tokenflow replay` reads it from the server and converts all times.",
        ),
    ] = "auto",
    sglang_args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- [SGLANG OPTIONS]", help="Options of `python -m sglang.launch_server`."
        ),
    ] = None,
) -> None:
    """Serve a model on an emulated device, with real SGLang and no GPU.

    The engine is SGLang itself, with its scheduler, caches and HTTP server; steps and KV copies
    take the time that they take on the device. The text is made up. Example:

    tokenflow serve-emulated --device h200 --model llama3-8b -- --scheduler tokenflow --port 30000
    """
    from tokenflow_sgl.profiles import ProfileError, load_profile

    need("An emulated server", "sglang", "tokenflow_sgl_emulator")
    if profile is None:
        try:
            built = load_profile(device, model)
        except ProfileError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from None
        profile = _cache() / f"{device}-{model}.json"
        with tempfile.TemporaryDirectory(dir=profile.parent) as scratch:
            built.save(Path(scratch) / profile.name)
            os.replace(Path(scratch) / profile.name, profile)  # another server may be reading it
    command = [sys.executable, "-m", "tokenflow_sgl_emulator.serve"]
    command += ["--profile", str(profile), "--time-dilation", time_dilation]
    # The process is replaced: signals and the exit code are the server's.
    os.execv(sys.executable, [*command, "--", *(sglang_args or [])])


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tokenflow-sgl" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
