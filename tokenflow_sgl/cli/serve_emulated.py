"""``tokenflow serve-emulated``: real SGLang with the timing of a device that is not there."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tokenflow_sgl.cli.chosen_engine import (
    DEFAULT_DEVICE,
    DEFAULT_MODEL,
    DeviceName,
    ModelName,
    needed_for_times,
)
from tokenflow_sgl.cli.extras import need
from tokenflow_sgl.cli.failing import Exit, fail, failing


def serve_emulated(
    device: Annotated[
        DeviceName,
        typer.Option(help="Device to emulate; `tokenflow profile list` describes them."),
    ] = DEFAULT_DEVICE,
    model: Annotated[ModelName, typer.Option(help="Model to emulate.")] = DEFAULT_MODEL,
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
    virtual_time: Annotated[
        bool,
        typer.Option(
            "--virtual-time",
            help="Run on a clock that only the device's work moves: figures repeat exactly, and "
            "the run takes as long as this machine needs. `tokenflow replay` knows such servers; "
            "other clients see tokens as fast as they are made.",
        ),
    ] = False,
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
    from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile

    times = needed_for_times(device, profile)
    need("An emulated server", "sglang", "tokenflow_sgl_emulator", *times)
    from tokenflow_sgl_emulator.timed.dilation import parse_dilation

    try:
        parse_dilation(time_dilation)
    except ValueError as error:
        fail(f"{error}.", Exit.usage)
    with failing("No server"):
        if profile is None:
            built = load_profile(device, model)
            profile = _cache() / f"{device}-{model}.json"
            with tempfile.TemporaryDirectory(dir=profile.parent) as scratch:
                built.save(Path(scratch) / profile.name)
                # Another server may be reading it.
                os.replace(Path(scratch) / profile.name, profile)
        else:
            DeviceProfile.load(profile)  # the server's process would say it in more words
    command = [sys.executable, "-m", "tokenflow_sgl_emulator.serve"]
    command += ["--profile", str(profile), "--time-dilation", time_dilation]
    command += ["--virtual-time"] if virtual_time else []
    # The process is replaced: signals and the exit code are the server's.
    os.execv(sys.executable, [*command, "--", *(sglang_args or [])])


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tokenflow-sgl" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
