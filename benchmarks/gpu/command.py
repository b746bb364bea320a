"""What the scripts of this folder share: their options, and where they run."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch


def arguments(description: str | None, output: str, metavar: str) -> argparse.Namespace:
    """The command line: `--output`, `--toy`, and `device`, which is `cuda` or `cpu`.

    Ends the program with a sentence where a GPU is wanted and none is there.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path(output), metavar=metavar)
    parser.add_argument("--toy", action="store_true", help="at toy size on the CPU")
    given = parser.parse_args()
    if not given.toy and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --toy runs at toy size on the CPU")
    given.device = "cpu" if given.toy else "cuda"
    if given.toy:
        torch.set_num_threads(1)  # threads that wait for each other take minutes on a busy machine
    return given
