"""A plugin of SGLang, for benchmarks: a model without weights behaves like one that has some.

- With `--load-format dummy` weights are such that the next token depends on all tokens before it.
  Under SGLang's own dummies, uniform within 0.001, the answer is the same whatever the KV holds.
- Answers end by EOS where the client says (`tokenflow_sgl_emulator.answer_ends`), unknown to the
  scheduler, and `/server_info` tells `tokenflow replay` so. The emulator's platform does this
  itself.
- With `TOKENFLOW_SERVE_BREAK=1` all that comes back from the host is the KV of one place: the
  negative control, which any comparison has to notice.

It is found by the metadata beside it, where this folder is on a server's PYTHONPATH.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

BREAK_VARIABLE = "TOKENFLOW_SERVE_BREAK"
WORDS = range(1000, 1512)
"""The only tokens that are generated: with few of them the best one leads by more than rounding."""
SHARPER = 1.5
"""Of queries and keys: attention then prefers some tokens to others."""
LOADS = "sglang.srt.mem_cache.l2_transfer.L2TransferEngine.submit_host_to_device"


def register() -> None:
    """Register the hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from tokenflow_sgl_emulator import PLATFORM_NAME
    from tokenflow_sgl_emulator.answer_ends import check_end, end_answers
    from tokenflow_sgl_emulator.emulator_seams import CHECK_END, DEVICE_REPORT, END_ANSWERS

    loader = "sglang.srt.model_loader.loader.initialize_dummy_weights"
    HookRegistry.register(loader, make_weights, HookType.REPLACE)
    if os.environ.get(BREAK_VARIABLE) == "1":
        HookRegistry.register(LOADS, load_one_place, HookType.AROUND)
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        HookRegistry.register(END_ANSWERS.target, end_answers, HookType.AROUND)
        HookRegistry.register(CHECK_END.target, check_end, HookType.BEFORE)
    HookRegistry.register(DEVICE_REPORT.target, say_that_answers_end, HookType.AROUND)


@torch.no_grad()
def make_weights(model: torch.nn.Module, *_args: Any, **_kwargs: Any) -> None:
    """Weights that keep the variance of what goes through them; the same ones in every process."""
    weights = model.state_dict()
    for number, (name, weight) in enumerate(weights.items()):
        if not torch.is_floating_point(weight) or "cos_sin_cache" in name:
            continue
        if "scale" in name:
            # Of weights in 8 bits, which are drawn with a variance of 1.
            scaled = weights[name[: name.index(".weight") + len(".weight")]]
            weight.fill_(scaled.shape[-1] ** -0.5)
        elif weight.dim() < 2:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            _draw(name, weight, number)


def _draw(name: str, weight: torch.Tensor, seed: int) -> None:
    generator = torch.Generator(device=weight.device)
    generator.manual_seed(seed)
    small = torch.finfo(weight.dtype).bits < 16
    std = 1.0 if small or "embed" in name else weight.shape[-1] ** -0.5
    std *= SHARPER if "qkv" in name else 1.0
    drawn = torch.empty_like(weight, dtype=torch.bfloat16) if small else weight
    drawn.normal_(0.0, std, generator=generator)
    if small:
        weight.copy_(drawn)
    if "lm_head" in name and weight.shape[0] > WORDS.stop:
        weight[: WORDS.start] = 0.0
        weight[WORDS.stop :] = 0.0


def say_that_answers_end(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's internal state: what `tokenflow replay` asks before it sends lengths."""
    output = original(*args, **kwargs)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    said = {"device": f"none, but {name}; answers end where clients say", "time_dilation": 1.0}
    output.internal_state.setdefault("emulated_device", said)
    return output


def load_one_place(
    original: Callable[..., Any], engine: Any, transfers: list[Any], **kwargs: Any
) -> Any:
    """Around copies from the host: each place gets the KV of the first one."""
    broken = [
        each._replace(host_indices=each.host_indices[:1].expand_as(each.host_indices).contiguous())
        for each in transfers
    ]
    return original(engine, broken, **kwargs)
