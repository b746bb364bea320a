"""SGLang's Llama with real weights, whose steps take the time of the emulated device.

What it says is computed on the CPU, however long that takes; the device's clock moves by what the
profile says. So the words are a small model's, and their moments a large one's.
"""

from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.models.llama import LlamaForCausalLM

from tokenflow_sgl_emulator.timed.device import the_device
from tokenflow_sgl_emulator.timed.step_time import take_step, waits
from tokenflow_sgl_emulator.timed.step_work import work_of


class TimedLlamaForCausalLM(LlamaForCausalLM):
    """The architecture that ``serve --words`` names."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)
        self.device_ = the_device()

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        *args: Any,
        **kwargs: Any,
    ) -> LogitsProcessorOutput:
        """Take the step's time, and compute it."""
        self._take(forward_batch, range(self.config.num_hidden_layers))
        return super().forward(input_ids, positions, forward_batch, *args, **kwargs)

    def forward_split_prefill(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        split_interval: tuple[int, int],
        *args: Any,
        **kwargs: Any,
    ) -> LogitsProcessorOutput | None:
        """Take the time of some layers of a prefill, and compute them."""
        self._take(forward_batch, range(*split_interval))
        return super().forward_split_prefill(
            input_ids, positions, forward_batch, split_interval, *args, **kwargs
        )

    def _take(self, forward_batch: Any, layers: range) -> None:
        loads, layerwise = waits()
        if layerwise is not None:
            raise RuntimeError(
                "--tokenflow-layerwise does not work with --words; remove one of both"
            )
        of = self.config.num_hidden_layers
        take_step(self.device_, work_of(forward_batch), layers, of, loads, None)


EntryClass = TimedLlamaForCausalLM
