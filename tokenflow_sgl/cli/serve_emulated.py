"""``tokenflow serve-emulated``: real SGLang with the timing of a device that is not there."""

from __future__ import annotations

import dataclasses
import json
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
    words: Annotated[
        bool,
        typer.Option(
            "--words",
            help="Compute a small trained model's words on this CPU, in the time of the device's "
            "model: see `tokenflow model`. Needs --virtual-time or a large --time-dilation.",
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
    times = needed_for_times(device, profile)
    need("An emulated server", "sglang", "tokenflow_sgl_emulator", *times)
    _check_pace(time_dilation, known=virtual_time or not words)
    with failing("No server"):
        folder = _words() if words else None
        profile = _profile(device, model, profile, folder)
    command = [sys.executable, "-m", "tokenflow_sgl_emulator.serve"]
    command += ["--profile", str(profile), "--time-dilation", time_dilation]
    command += [
        *(["--virtual-time"] if virtual_time else []),
        *(["--words", str(folder)] if folder else []),
    ]
    # The process is replaced: signals and the exit code are the server's.
    os.execv(sys.executable, [*command, "--", *(sglang_args or [])])


def _check_pace(time_dilation: str, *, known: bool) -> None:
    """Refuse a time dilation that is none. known: whether it is, where it is not given."""
    from tokenflow_sgl_emulator.timed.dilation import parse_dilation

    try:
        given = parse_dilation(time_dilation)
    except ValueError as error:
        fail(f"{error}.", Exit.usage)
    if given is None and not known:
        fail(
            "--words computes each step on this CPU, for which no time dilation is known: give "
            "--virtual-time, or a --time-dilation.",
            Exit.usage,
        )


def _profile(device: str, model: str, own: Path | None, words: Path | None) -> Path:
    """The file of the profile that is served: the user's own, or one in the cache."""
    from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile

    # Here, for the server's process would say in more words what is wrong with it.
    built = load_profile(device, model) if own is None else DeviceProfile.load(own)
    if own is not None and words is None:
        return own
    name = f"{device}-{model}" if own is None else f"own-{own.stem}"
    if words is not None:
        name = f"{name}-words"
        layers = json.loads((words / "config.json").read_text())["num_hidden_layers"]
        # What its layers take and copy is shared among those that compute.
        built = dataclasses.replace(built, layers=layers)
    file = _cache() / f"{name}.json"
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        built.save(Path(scratch) / file.name)
        # Another server may be reading it.
        os.replace(Path(scratch) / file.name, file)
    return file


def _words() -> Path:
    from tokenflow_sgl_emulator.trained.shipped import SMOLLM2, converted

    return converted(SMOLLM2, "float32")


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tokenflow-sgl" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
