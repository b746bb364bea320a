"""On the bare machine, first in each call: SGLang and what it needs, from the parts that came.

    python3 benchmarks/gpu/serve/bare/assemble.py .gpu

Puts it under --home, unless it is there already, and with it `python`: this Python with that site
and with the settings of that machine. Parts of earlier calls are kept there. Exit code 4: some are
still missing, so call with the next ones.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from packing import MissingError, unpack

ROOT = Path(__file__).resolve().parents[4]
NAME = "site"
MISSING = 4
"""Exit code: parts are still missing."""
TOLD = ("torch", "triton", "transformers", "sglang", "sglang-kernel", "tokenflow-sgl")
SETTINGS = {
    # The tree in Rust is compiled for torch 2.14, and panics with 2.11.
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    # Without bytecode each process of a server would compile all that it imports.
    "PYTHONDONTWRITEBYTECODE": "",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", type=Path, help="the folder that came with this call")
    parser.add_argument("--home", type=Path, default=Path("/tmp/gpu"), metavar="FOLDER")
    args = parser.parse_args()
    home, began = args.home.absolute(), time.monotonic()
    launcher = home / "python"
    if launcher.exists():
        print(f"{launcher} is there already")
        return 0
    kept = home / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    for part in sorted(args.parts.rglob(f"{NAME}.*")):
        shutil.copy(part, kept)
    try:
        unpack(kept, home / "site", NAME)
    except MissingError as error:
        print(f"not yet: {error}")
        return MISSING
    print(f"unpacked after {time.monotonic() - began:.0f} s", flush=True)
    for folder in (home / "site", ROOT / "tokenflow_sgl"):
        compileall.compile_dir(folder, quiet=2, workers=0)
    launcher.write_text(script(home))
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    told = "from importlib.metadata import version\n"
    told += f"print({{name: version(name) for name in {TOLD!r}}})"
    code = subprocess.run([launcher, "-c", told]).returncode
    tools = {tool: shutil.which(tool) for tool in ("nvcc", "g++", "ninja", "nvidia-smi")}
    print(f"tools: {tools}\nassembled after {time.monotonic() - began:.0f} s")
    return code


def script(home: Path) -> str:
    """A shell script that is Python with the site, and with what is made there kept in `home`."""
    paths = [ROOT, ROOT / "emulator" / "src", home / "site"]
    caches = {"SGLANG_JIT_CACHE_DIR": home / "jit", "TRITON_CACHE_DIR": home / "triton"}
    given = {**SETTINGS, **caches, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in given.items()]
    return "\n".join(["#!/bin/sh", *lines, f'exec {shlex.quote(sys.executable)} "$@"']) + "\n"


if __name__ == "__main__":
    sys.exit(main())
