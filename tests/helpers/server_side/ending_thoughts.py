"""Ends thoughts: the model of these tests has never been trained to."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

END = "</think>"


class Ending(CustomLogitProcessor):
    """After `thinks` tokens the next ones are those of `END`, whatever the model would say."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        for row, params in enumerate(custom_param_list or ()):
            req = params["__req__"]
            end = req.tokenizer.encode(END, add_special_tokens=False)
            at = len(req.output_ids) - params["thinks"]
            if 0 <= at < len(end):
                logits[row] = -100.0
                logits[row, end[at]] = 0.0
        return logits
