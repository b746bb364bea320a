"""A custom logit processor that notes how much output it sees with every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class RecordingLogits(CustomLogitProcessor):
    """Appends the output length of each row to the file named after the request's `record`."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
        for params in custom_param_list or []:
            with Path(params["record"]).open("a") as file:
                file.write(f"{len(params['__req__'].output_ids)}\n")
        return logits
