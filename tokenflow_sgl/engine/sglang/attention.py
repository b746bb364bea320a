"""What is used of SGLang's attention and of the layers around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.protocol import of

if TYPE_CHECKING:
    import torch

_TRITON = "sglang.srt.layers.attention.triton_backend"


@of("sglang.srt.layers.radix_attention:RadixAttention")
class AttentionLayer(Protocol):
    """The attention of one layer."""

    layer_id: int


@of(f"{_TRITON}:ForwardMetadata")
class TritonMetadata(Protocol):
    """Where the tokens of a step lie."""

    kv_indices: torch.Tensor


@of(f"{_TRITON}:TritonAttnBackend")
class TritonAttention(Protocol):
    """Attention by Triton's kernels."""

    num_head: int
    max_kv_splits: int
    enable_deterministic: bool
    decode_attention_fwd: Any
    """Tried at start, through the table that layers look KV up in."""
    forward_metadata: TritonMetadata


@of("sglang.srt.model_executor.cuda_graph_config:PhaseConfig")
class GraphsOfPhase(Protocol):
    """CUDA graphs of prefills or of decode steps."""

    backend: Any


@of("sglang.srt.model_executor.cuda_graph_config:CudaGraphConfig")
class Graphs(Protocol):
    """CUDA graphs, with which no layer can wait."""

    decode: GraphsOfPhase
    prefill: GraphsOfPhase


@of("sglang.srt.arg_groups.fields.exec_:ExecGraph")
class GraphSettings(Protocol):
    """What `get_exec` says of CUDA graphs."""

    cuda_graph_config: Graphs


@of("sglang.srt.model_executor.model_runner:ModelRunnerOutput")
class RunnerOutput(Protocol):
    """What some layers of a prefill make."""

    logits_output: Any
    can_run_graph: bool


@of("sglang.srt.layers.layer_boundary.stage:StageBoundary")
class LayerBoundary(Protocol):
    """What stands before a layer's attention: `attn_boundary` of a layer."""

    def from_pp(self, tensors: Any, forward_batch: Any) -> Any:
        """Goes on with the tokens behind a prefix."""


@of("sglang.srt.models.llama:LlamaDecoderLayer")
class DecoderLayer(Protocol):
    """A layer of a model that can be split; models have the same attribute."""

    attn_boundary: LayerBoundary


@of("sglang.srt.model_executor.forward_batch_info:PPProxyTensors")
class CarriedTensors(Protocol):
    """Hidden states between two parts of a prefill."""

    tensors: dict[str, torch.Tensor]
