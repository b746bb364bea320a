"""Linear layers whose rows do not depend on the batch they are computed in.

A float32 matrix product picks its kernel by the number of rows, so the same row gives other last
bits in a batch of 1 than in a batch of 2 (measured for every layer of the tiny models). Computed in
float64 and rounded once, the differences disappear below the rounding.
"""

from typing import Any

import torch
from sglang.srt.layers.quantization.unquant import (
    UnquantizedEmbeddingMethod,
    UnquantizedLinearMethod,
)
from torch.nn.functional import linear


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    # The weight is widened on every call: 3 microseconds for a tiny model, and a weight update
    # or a LoRA wrapper needs no care.
    wide = linear(x.double(), weight.double(), None if bias is None else bias.double())
    return wide.to(x.dtype)


class ExactLinearMethod(UnquantizedLinearMethod):
    """SGLang's plain linear layer in float64."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x @ weight.T + bias``, rounded once to the type of ``x``."""
        return _linear(x, layer.weight, bias)


class ExactHeadMethod(UnquantizedEmbeddingMethod):
    """The same for the output head; the embedding look-up needs no arithmetic."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``x @ weight.T + bias``, rounded once to the type of ``x``."""
        return _linear(x, layer.weight, bias)


def make_linears_exact(model: torch.nn.Module) -> None:
    """Swap the method of every unquantised linear layer and head of a loaded SGLang model."""
    for module in model.modules():
        method = type(getattr(module, "quant_method", None))
        if method is UnquantizedLinearMethod:
            module.quant_method = ExactLinearMethod()
        elif method is UnquantizedEmbeddingMethod:
            module.quant_method = ExactHeadMethod()
