"""A language model without weights: it takes the target's time and makes up its tokens.

The next token is a hash of the last token and its position. So a request's text depends on its own
history only, and two runs of the same prompt must agree however they were scheduled. KV pages are
real to SGLang (allocated, shared, evicted, loaded back), their content is never read.
"""

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput

from tokenflow_sgl_emulator.timed.device import the_device
from tokenflow_sgl_emulator.timed.step_time import take_step, waits
from tokenflow_sgl_emulator.timed.step_work import work_of
from tokenflow_sgl_emulator.tokenizer import word_ids

_MULTIPLIER = 0x9E3779B1  # 2**32 divided by the golden ratio: neighbouring inputs end up far apart


class EmulatedForCausalLM(torch.nn.Module):
    """The architecture that the configuration of an emulated model names."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.words = word_ids(config.vocab_size)
        self.device_ = the_device()

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
    ) -> LogitsProcessorOutput:
        """Take the step's time layer by layer, each after its KV has arrived from the host."""
        layers = self.config.num_hidden_layers
        take_step(self.device_, work_of(forward_batch), range(layers), layers, *waits())
        if not forward_batch.forward_mode.is_extend():
            return LogitsProcessorOutput(next_token_logits=self._logits(input_ids, positions))
        return self._of_prompts(input_ids, positions, forward_batch)

    def forward_split_prefill(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        split_interval: tuple[int, int],
        input_embeds: torch.Tensor | None = None,
    ) -> LogitsProcessorOutput | None:
        """Take the time of some layers of a prefill; the last ones give its tokens."""
        layers, of = range(*split_interval), self.config.num_hidden_layers
        take_step(self.device_, work_of(forward_batch), layers, of, *waits())
        if layers.stop < of:
            return None
        return self._of_prompts(input_ids, positions, forward_batch)

    def _of_prompts(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> LogitsProcessorOutput:
        last = forward_batch.extend_seq_lens.cumsum(0) - 1
        return LogitsProcessorOutput(
            next_token_logits=self._logits(input_ids[last], positions[last]),
            # Of the prompt none is asked for (`request_checks`). But SGLang wants some to be there
            # where an answer with log-probabilities was retracted and is computed anew; it keeps
            # those that it has.
            input_token_logprobs=torch.zeros(0),
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """There are none."""

    def _logits(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mixed = (input_ids * _MULTIPLIER + positions * 40503) & 0xFFFFFFFF
        token = self.words.start + ((mixed * _MULTIPLIER) & 0xFFFFFFFF) % len(self.words)
        logits = torch.zeros(len(token), self.config.vocab_size)
        return logits.scatter_(1, token[:, None], 30.0)


EntryClass = EmulatedForCausalLM
