"""How stored KV comes back to the device soonest: computed, loaded, or both at once. Pure plans.

After CacheFlow (arXiv 2604.25080). `token_wise` and `layer_wise` divide one prefix, `plan` chooses
between them and either source alone, `next_head` decides before each chunk, `batch` orders the
loads of several requests, `batch_schedule` plays a batch through, `multi_gpu` says what tensor
parallelism and pipeline stages change, and `pipeline_schedule` plays stages.
"""

from tokenflow_sgl.restoration.batch import Pending, io_order, link_shares
from tokenflow_sgl.restoration.batch_schedule import schedule
from tokenflow_sgl.restoration.channel import Channel
from tokenflow_sgl.restoration.jobs import BatchOutcome, IoOrder, Job, PrefillMachine, ServedJob
from tokenflow_sgl.restoration.layer_wise import (
    LayerSplit,
    best_layers,
    layers_are_sooner,
    more_layers,
)
from tokenflow_sgl.restoration.multi_gpu import Pipeline, boundary_bytes, sharded
from tokenflow_sgl.restoration.next_head import HeadPlanner, Known, MeetingPoint, next_head
from tokenflow_sgl.restoration.pipeline_schedule import StagedRestoration, play_stages
from tokenflow_sgl.restoration.plan import (
    RestorePlan,
    RestoreTerms,
    Stored,
    WayReason,
    crossover_length,
    plan,
)
from tokenflow_sgl.restoration.token_wise import (
    Fetch,
    Seconds,
    Split,
    alone_is_sooner,
    best_split,
    head_tokens,
    in_chunks,
    tokens_within,
)

__all__ = [
    "BatchOutcome",
    "Channel",
    "Fetch",
    "HeadPlanner",
    "IoOrder",
    "Job",
    "Known",
    "LayerSplit",
    "MeetingPoint",
    "Pending",
    "Pipeline",
    "PrefillMachine",
    "RestorePlan",
    "RestoreTerms",
    "Seconds",
    "ServedJob",
    "Split",
    "StagedRestoration",
    "Stored",
    "WayReason",
    "alone_is_sooner",
    "best_layers",
    "best_split",
    "boundary_bytes",
    "crossover_length",
    "head_tokens",
    "in_chunks",
    "io_order",
    "layers_are_sooner",
    "link_shares",
    "more_layers",
    "next_head",
    "plan",
    "play_stages",
    "schedule",
    "sharded",
    "tokens_within",
]
