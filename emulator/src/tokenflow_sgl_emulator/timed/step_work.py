"""What one forward pass computes, in the quantities that step times depend on."""

from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.profiles import DeviceProfile


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step.

    tokens: new tokens of prefilled requests with more than one.
    attention: keys that these tokens attend to, summed (`attention_work`).
    batch: requests that get one token. context: KV tokens that these read.
    decode: SGLang runs it as a decode step, and not as a prefill.
    """

    tokens: int
    attention: float
    batch: int
    context: int
    decode: bool = False

    def seconds(self, profile: DeviceProfile) -> float:
        """How long the step takes on the target device."""
        if self.decode:
            return profile.decode_seconds(self.batch, self.context)
        return profile.mixed_seconds(self.tokens, self.attention, self.batch, self.context)


def work_of(forward_batch: Any) -> StepWork:
    """The work of one of SGLang's forward batches.

    A row of one token is a decode row to the device, also where SGLang calls it a prefill: it runs
    a mixed batch as a prefill batch, with its decode rows as prefills of one token each. To the CPU
    such a batch is a prefill.
    """
    if not forward_batch.forward_mode.is_extend():
        lengths = forward_batch.seq_lens_cpu
        return StepWork(0, 0.0, len(lengths), int(lengths.sum()), decode=True)
    tokens = batch = context = 0
    attention = 0.0
    for new, prefix in zip(
        forward_batch.extend_seq_lens_cpu, forward_batch.extend_prefix_lens_cpu, strict=True
    ):
        if new == 1:
            batch += 1
            context += prefix + 1
        else:
            tokens += new
            attention += attention_work(new, prefix)
    return StepWork(tokens, attention, batch, context)
