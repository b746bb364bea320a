"""Running SGLang code that pins host memory without asking the platform whether it may.

SGLang's LoRA code does (0.5.23, ``srt/lora``), and without a GPU driver torch refuses. On this
platform pinning has no meaning, so inside :func:`without_pinning` torch ignores the request.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _NoPinning(TorchFunctionMode):
    """Drops ``pin_memory=True`` from factory calls and makes ``Tensor.pin_memory()`` do nothing."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.pin_memory:
            return args[0]
        rest = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*args, **rest)


def without_pinning(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around hook: call ``original`` while torch ignores requests to pin memory."""
    with _NoPinning():
        return original(*args, **kwargs)
