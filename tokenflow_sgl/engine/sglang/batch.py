"""What is used of SGLang's batches: of requests, and of rows that a model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.pools import Allocator
from tokenflow_sgl.engine.sglang.protocol import of
from tokenflow_sgl.engine.sglang.request import Req

if TYPE_CHECKING:
    import torch

_BATCH = "sglang.srt.managers.schedule_batch"
_FORWARD = "sglang.srt.model_executor.forward_batch_info"


@of(f"{_FORWARD}:ForwardMode")
class ForwardKind(Protocol):
    """What a step does with its rows."""

    name: str

    def is_decode(self) -> bool:
        """A token for each of them."""

    def is_idle(self) -> bool:
        """Nothing: other ranks have some."""


_PENALTY = "sglang.srt.sampling.penaltylib"


@of(f"{_PENALTY}.orchestrator:_BatchedPenalizer")
class Penalizer(Protocol):
    """Rows of one penalty on tokens, such as that on frequency."""

    def is_prepared(self) -> bool:
        """Whether it has any."""


@of(f"{_PENALTY}.frequency_penalty:BatchedFrequencyPenalizer")
class FrequencyPenalties(Protocol):
    """Rows that a resume rebuilds."""

    frequency_penalties: torch.Tensor
    cumulated_frequency_penalties: torch.Tensor


@of(f"{_PENALTY}.presence_penalty:BatchedPresencePenalizer")
class PresencePenalties(Protocol):
    """Rows that a resume rebuilds."""

    presence_penalties: torch.Tensor
    cumulated_presence_penalties: torch.Tensor


@of(f"{_PENALTY}.repetition_penalty:BatchedRepetitionPenalizer")
class RepetitionPenalties(Protocol):
    """Rows that a resume rebuilds."""

    repetition_penalties: torch.Tensor
    cumulated_repetition_penalties: torch.Tensor


@of(f"{_PENALTY}.min_new_tokens:BatchedMinNewTokensPenalizer")
class MinNewTokens(Protocol):
    """Rows that a resume rebuilds."""

    len_output_tokens: torch.Tensor


@of("sglang.srt.sampling.penaltylib.orchestrator:BatchedPenalizerOrchestrator")
class Penalizers(Protocol):
    """Penalties of a batch, whose rows a resume rebuilds."""

    is_required: bool
    penalizers: Mapping[Any, Penalizer]


@of("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo")
class BatchSampling(Protocol):
    """How the rows of a batch are sampled."""

    penalizer_orchestrator: Penalizers


@of("sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache")
class BatchTree(Protocol):
    """The prefix tree, as far as a batch is asked for it."""

    token_to_kv_pool_allocator: Allocator


@of(f"{_BATCH}:ScheduleBatch")
class ReqBatch(Protocol):
    """Requests that run together."""

    reqs: list[Req]
    device: Any
    forward_mode: ForwardKind
    tree_cache: BatchTree
    sampling_info: BatchSampling
    spec_info: Any
    """Drafts of its rows."""
    batch_is_full: bool
    """Kept, it would let SGLang admit none."""
    hicache_consumer_index: int
    """The load that it waits for, layer by layer."""
    is_extend_in_batch: bool
    return_logprob: bool
    decoding_reqs: list[Req] | None
    """Of a mixed step: those that decode."""
    extend_lens: list[int]
    prefix_lens: list[int]
    extend_num_tokens: int | None
    extend_logprob_start_lens: list[int]
    input_ids: torch.Tensor
    out_cache_loc: torch.Tensor
    seq_lens_cpu: torch.Tensor
    req_pool_indices: torch.Tensor
    req_pool_indices_cpu: torch.Tensor

    def is_empty(self) -> bool:
        """Whether it has no requests."""

    def filter_batch(self, reqs_to_exclude: Sequence[Req]) -> None:
        """Takes preempted requests out of the batch."""

    def merge_batch(self, other: ReqBatch) -> None:
        """Joins those that run."""

    def prepare_for_prebuilt(self) -> None:
        """Fills one of streams whose KV is there, as for KV that has come."""

    def check_decode_mem(self) -> bool:
        """Whether a decode step would fit."""


@of(f"{_BATCH}:NextBatchPlan")
class NextPlan(Protocol):
    """What SGLang has chosen: which batch runs next, and which streams go on."""

    batch_to_run: ReqBatch | None
    running_batch: ReqBatch


@of(f"{_FORWARD}:ForwardBatch")
class ForwardStep(Protocol):
    """Rows that a model computes in one step."""

    forward_mode: ForwardKind
    sampling_info: BatchSampling
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor | None
    extend_seq_lens: torch.Tensor | None
    extend_seq_lens_cpu: list[int] | None
    req_pool_indices: torch.Tensor
    residual_stream: Any
    """Not None where layers below were computed."""
    hidden_states: Any
    split_index: int
    """Layers that are computed of a prefill that is split."""
