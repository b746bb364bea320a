"""Start SGLang on an emulated device: ``python -m tokenflow_sgl_emulator.serve --profile P``.

``tokenflow serve-emulated`` is the command for people; it makes the profile and calls this.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenflow_sgl.lab.profiles import DeviceProfile, ProfileError
from tokenflow_sgl_emulator import PLATFORM_NAME
from tokenflow_sgl_emulator.timed.clock import VIRTUAL_VARIABLE
from tokenflow_sgl_emulator.timed.device import DILATION_VARIABLE, PROFILE_VARIABLE
from tokenflow_sgl_emulator.timed.device_defaults import pool_tokens
from tokenflow_sgl_emulator.timed.dilation import choose_dilation, parse_dilation
from tokenflow_sgl_emulator.timed.words import WORDS_VARIABLE, words_arguments

MAX_RUNNING = 2048
"""SGLang's own limit of running requests for a pool that would hold more."""
TAKEN = ("--model-path", "--model", "--device", "--served-model-name", "--load-format")
"""SGLang's options that the emulated device decides."""
CONFIG = "--config"
"""SGLang's option for a file with options."""


def main(argv: Sequence[str] | None = None) -> None:
    """Become the server: the process is replaced, so signals and exit codes are SGLang's."""
    parser = argparse.ArgumentParser(
        prog="python -m tokenflow_sgl_emulator.serve",
        description="Serve an emulated model on an emulated device with real SGLang.",
    )
    parser.add_argument("--profile", type=Path, required=True, help="device profile (JSON)")
    parser.add_argument(
        "--time-dilation",
        default="auto",
        help="wall-clock seconds per emulated second, or auto: what this machine needs",
    )
    parser.add_argument(
        "--virtual-time",
        action="store_true",
        help="run on a clock that only the device's work moves: no wall-clock time in any figure",
    )
    parser.add_argument(
        "--words",
        type=Path,
        metavar="FOLDER",
        help="model whose weights are computed, in the device's time: its words are real",
    )
    parser.add_argument("sglang", nargs="*", help="after --: arguments of sglang.launch_server")
    args = parser.parse_args(argv)
    for option in args.sglang:
        if reason := _refused(option):
            parser.error(f"{option} cannot be given: {reason}")
    try:
        profile = DeviceProfile.load(args.profile)
        words = () if args.words is None else words_arguments(args.words, profile.layers)
        dilation = 1.0
        if not args.virtual_time:
            dilation = _dilation(args.time_dilation, profile, args.sglang)
        elif args.time_dilation != "auto":
            raise ValueError("--time-dilation is of no use with --virtual-time; give one of them")
    except (OSError, ProfileError, ValueError) as error:
        parser.error(str(error))
    said = f"what {args.words.name} says" if words else "made up"
    pace = f"one emulated second takes {dilation:g} s"
    if args.virtual_time:
        pace = "on a virtual clock"
    print(
        f"Emulating {profile.model} on {profile.device} ({profile.source}); {pace}. "
        f"The timing is the device's; the text is {said}.",
        flush=True,
    )
    os.environ |= {
        "SGLANG_PLATFORM": PLATFORM_NAME,
        PROFILE_VARIABLE: str(args.profile.resolve()),
        DILATION_VARIABLE: repr(dilation),
        VIRTUAL_VARIABLE: str(int(args.virtual_time)),
        WORDS_VARIABLE: str(int(bool(words))),
    }
    model = words or ("--model-path", str(_model_folder(profile.layers)))
    names = ("--served-model-name", profile.model)
    command = [sys.executable, "-m", "sglang.launch_server", *model, *names, *args.sglang]
    os.execv(sys.executable, command)


def _refused(option: str) -> str | None:
    """Why this option of SGLang's cannot be given; None: it can be.

    SGLang takes abbreviations: one that could mean an option of these counts as that option.
    """
    name = option.partition("=")[0]
    if len(name) <= len("--") or not name.startswith("--"):
        return None
    if any(taken.startswith(name) for taken in TAKEN):
        return "the emulated device brings its own model"
    if CONFIG.startswith(name):
        return "write the file's options out; some of them the emulated device decides"
    return None


def _dilation(text: str, profile: DeviceProfile, sglang_args: Sequence[str]) -> float:
    given = parse_dilation(text)
    if given is not None:
        return given
    sizes = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    sizes.add_argument("--max-total-tokens", type=int)
    sizes.add_argument("--mem-fraction-static", type=float)
    sizes.add_argument("--max-running-requests", type=int, default=MAX_RUNNING)
    known, _ = sizes.parse_known_args(sglang_args)
    tokens = pool_tokens(profile, known.max_total_tokens, known.mem_fraction_static)
    return choose_dilation(profile, tokens, known.max_running_requests)


def _model_folder(layers: int) -> Path:
    """The emulated model's folder in the user's cache, made when it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tokenflow-sgl" / f"emulated-{layers}-layers"
    # In a process of its own: the tokenizer library starts threads, and this process is replaced.
    code = (
        "from tokenflow_sgl_emulator.timed import model_folder as m; import sys; m.main(sys.argv)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), str(layers)], check=True)
    return folder


if __name__ == "__main__":
    main()
