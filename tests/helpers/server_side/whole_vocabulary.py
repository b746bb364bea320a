"""Starts SGLang, and notes or compares the log probabilities of the whole vocabulary at each token.

A request is known by its name, a token by its position. What is broken
on purpose (`broken_server.py`) is broken here, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import prepare_server_args

if "TOKENFLOW_TEST_BREAK" in os.environ:
    import broken_server  # noqa: F401

NOTES = "TOKENFLOW_TEST_VOCABULARY"
"""Variable: the folder with what an undisturbed server has noted."""
COMPARED = "TOKENFLOW_TEST_VOCABULARY_COMPARED"
"""Variable: the file with a line for each token that was compared; unset: they are noted."""
BEGINS = "question-"
"""Of the names of requests that are looked at. Others are SGLang's own."""

sample = ModelRunner.sample


def note_and_sample(self: Any, logits_output: Any, forward_batch: Any) -> Any:
    """Before the sampler, which changes the logits in their place."""
    if get_parallel().tp_rank == 0:
        decodes = forward_batch.forward_mode.is_decode()
        positions = forward_batch.positions if decodes else forward_batch.seq_lens - 1
        rows = zip(forward_batch.rids, positions.tolist(), strict=True)
        for row, (rid, position) in enumerate(rows):
            if rid.startswith(BEGINS):
                look_at(logits_output.next_token_logits[row].float(), rid, position)
    return sample(self, logits_output, forward_batch)


def look_at(logits: torch.Tensor, rid: str, position: int) -> None:
    folder = Path(os.environ[NOTES]) / rid
    path = folder / f"{position}.npy"
    compared = os.environ.get(COMPARED)
    if compared is None:
        folder.mkdir(exist_ok=True)
        np.save(path, logits.numpy())
        return
    line = f"{rid} {position} nan 0"
    if path.exists():
        other = torch.from_numpy(np.load(path))
        line = f"{rid} {position} {difference(logits, other)} {int(torch.equal(logits, other))}"
    with Path(compared).open("a") as file:
        file.write(f"{line}\n")


def difference(logits: torch.Tensor, other: torch.Tensor) -> float:
    """The greatest of the whole vocabulary; a token that only one of both forbids is infinite."""
    one, two = (each.double().log_softmax(-1) for each in (logits, other))
    return float(torch.where(one == two, 0.0, (one - two).abs()).max())


ModelRunner.sample = note_and_sample

if __name__ == "__main__":
    load_plugins()
    args = prepare_server_args(sys.argv[1:])
    from sglang.launch_server import run_server

    run_server(args)
