"""SGLang's kernels on this machine against transformers on the CPU: a small model with weights.

Every kernel of a dense model is in it: norms, rotary embeddings, activations, attention of prompts
and of single tokens. Log probabilities are compared with those of float32. How far they may be off
says transformers in the server's own precision.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from journal import Figures, WrongError
from machine import Machine
from transformers import AutoModelForCausalLM

from tokenflow_sgl_emulator.models import make_tiny_model

VOCABULARY = 512
PROMPT, ANSWER = 300, 60
"""Tokens."""
SLACK = 4.0
"""SGLang's mean error, over that of transformers in the same precision, at most."""


def check(machine: Machine, folder: Path) -> Figures:
    """Serve, compare, and see that another prompt's log probabilities would be noticed.

    Raises:
        WrongError: SGLang's are further off than they may be, or the control is not.
    """
    # Heads as wide as those of real models: kernels are made for such.
    hidden, heads = (64, 4) if machine.toy else (1024, 8)
    path = make_tiny_model(
        machine.home / "reference", "llama", vocab=VOCABULARY, hidden=hidden, heads=heads, layers=2
    )
    draw = random.Random(1)
    prompt, other = ([draw.randrange(300, VOCABULARY) for _ in range(PROMPT)] for _ in range(2))
    more = () if machine.toy else ("--dtype", "bfloat16")
    options = ("--max-total-tokens", "4096", *more)
    model = ("--model-path", str(path))
    with machine.served(folder, "stock", options, model=model) as served:
        body: dict[str, Any] = {"input_ids": prompt, "return_logprob": True}
        body |= {"logprob_start_len": 0}
        body["sampling_params"] = {"max_new_tokens": ANSWER, "temperature": 0}
        about = served.post("/generate", body).body["meta_info"]
    told = about["input_token_logprobs"][1:] + about["output_token_logprobs"]
    ids = [prompt[0], *(token for _, token, _ in told)]
    right = _logprobs(path, ids, torch.float32)
    got = torch.tensor([value for value, *_ in told])
    swapped = _logprobs(path, [*other, *ids[PROMPT:]], torch.float32)
    errors = {
        "sglang": float((got - right).abs().mean()),
        "sglang, answer": float((got - right)[PROMPT - 1 :].abs().mean()),
        "transformers": float((_logprobs(path, ids, torch.bfloat16) - right).abs().mean()),
        "control": float((swapped - right)[PROMPT - 1 :].abs().mean()),
    }
    limit = SLACK * errors["transformers"]
    figures = {"errors": errors, "limit": limit, "tokens": len(told)}
    if max(errors["sglang"], errors["sglang, answer"]) > limit:
        raise WrongError("SGLang's kernels are off by more than rounding", figures)
    if errors["control"] <= limit:
        raise WrongError("another prompt goes unnoticed: nothing is shown", figures)
    return figures


@torch.no_grad()
def _logprobs(path: Path, ids: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Of each token but the first, on the CPU."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    logits = model(torch.tensor([ids])).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
