"""The prefill of one prompt whose lower layers are computed while its upper ones are loaded.

SGLang can compute a prefill some layers at a time (`forward_split_prefill`, which it uses to
multiplex prefill and decode). Here all tokens of the prompt go up as far as layers are missing of
its stored prefix. From there on the prefix' KV is loaded, and only the tokens behind it go on.
"""

from __future__ import annotations

import copy
from typing import Any

from sglang.srt.layers.layer_boundary.residual import batch as residual_batch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import (
    ForwardBatch,
    ForwardMode,
    PPProxyTensors,
)

from tokenflow_sgl.engine.layerwise_settings import layerwise_of
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.worker import LiveScheduler, Runner, Worker


class SplitPrefill:
    """A prefill whose first layers are computed, or about to be.

    Args:
        batch: SGLang's, with all of one prompt that is not on the device.
        restoration: Of its prefix.
        layers: Of the model.

    Attributes:
        computed: Layers that are computed or launched, for all tokens.
        first: Layers from this one on are loaded, when it is to be finished.
    """

    def __init__(self, batch: ReqBatch, restoration: Restoration, layers: int) -> None:
        self.batch = batch
        self.restoration = restoration
        self.request = restoration.request
        self.layers = layers
        self.computed = 0
        self.first = layers
        self.prefix = int(batch.prefix_lens[0])
        """Tokens before the gap."""
        self.suffix = int(batch.extend_lens[0]) - (restoration.end - self.prefix)
        """Tokens behind it."""
        self._forward: Any = None

    @property
    def gap(self) -> int:
        """Tokens whose KV is stored, and missing on the device."""
        return self.restoration.end - self.prefix

    def compute(self, worker: Worker, more: int) -> None:
        """Launch so many layers more, of all tokens."""
        worker.set_hicache_consumer(self.batch.hicache_consumer_index)
        self._launch(worker.model_runner, self._all_tokens(worker.model_runner), more)
        self.computed += more

    def finish(self, worker: Worker, batch: ReqBatch) -> GenerationBatchResult:
        """Launch what is left, and sample.

        Args:
            worker: SGLang's.
            batch: As SGLang runs it, `self.batch`.
        """
        runner, output = worker.model_runner, None
        worker.set_hicache_consumer(batch.hicache_consumer_index)
        first = max(self.first, self.computed)
        forward = self._all_tokens(runner)
        forward.sampling_info = batch.sampling_info
        if first > self.computed:
            output = self._launch(runner, forward, first - self.computed)
        if first < self.layers:
            forward = self._behind_gap(runner, batch, first)
            output = self._launch(runner, forward, self.layers - first)
        assert output is not None, "some layers are left where a prefill is finished"
        return GenerationBatchResult(
            logits_output=output.logits_output,
            can_run_cuda_graph=output.can_run_graph,
            next_token_ids=runner.sample(output.logits_output, forward),
        )

    def _all_tokens(self, runner: Runner) -> Any:
        if self._forward is None:
            self._forward = _forward_of(runner, self.batch)
        return self._forward

    def _launch(self, runner: Runner, forward: Any, more: int) -> Any:
        # Another batch's metadata may be in the attention backend.
        return runner.forward(forward, reinit_attn_backend=True, split_forward_count=more)

    def _behind_gap(self, runner: Runner, batch: ReqBatch, layer: int) -> Any:
        """The tokens behind the gap alone, as the layer below has left them."""
        before, rows = self._forward, self.suffix
        part = copy.copy(batch)
        part.input_ids = batch.input_ids[-rows:]
        part.out_cache_loc = batch.out_cache_loc[-rows:]
        part.prefix_lens, part.extend_lens = [self.restoration.end], [rows]
        part.extend_num_tokens = rows
        part.extend_logprob_start_lens = [batch.extend_logprob_start_lens[0] - self.gap]
        forward = _forward_of(runner, part)
        forward.split_index = layer
        if before.residual_stream is not None:  # else no layer is below, or the emulator's model
            carried = residual_batch.to_pp(before.hidden_states, before)
            kept = PPProxyTensors({name: each[-rows:] for name, each in carried.tensors.items()})
            boundary = runner.model.model.layers[layer].attn_boundary
            forward.hidden_states = boundary.from_pp(kept, forward)
        return forward


def _forward_of(runner: Runner, batch: ReqBatch) -> Any:
    mode, batch.forward_mode = batch.forward_mode, ForwardMode.SPLIT_PREFILL
    try:
        return ForwardBatch.init_new(batch, runner, return_hidden_states_before_norm=False)
    finally:
        batch.forward_mode = mode


class FinishingWorker:
    """Stands for SGLang's worker in the one step that finishes a split prefill.

    A hook on the worker would be ignored where another plugin has one already.
    """

    def __init__(self, worker: Worker, split: SplitPrefill) -> None:
        self._worker = worker
        self._split = split

    def forward_batch_generation(self, batch: ReqBatch, **_: Any) -> GenerationBatchResult:
        """Compute the layers that are left, as SGLang's worker; there is no other stage."""
        return self._split.finish(self._worker, batch)


def layers_of(scheduler: LiveScheduler) -> int:
    """Layers of a model whose prefills can be split; 0: they cannot."""
    runner = scheduler.tp_worker.model_runner
    model, args = runner.model, scheduler.server_args
    if not hasattr(model, "forward_split_prefill") or runner.attn_tp_sequence_sharded(1):
        return 0
    # Those of one kind hand their state over as pipeline stages do; the emulator's has none.
    stack = getattr(getattr(model, "model", None), "layers", None)
    if stack is not None and not hasattr(stack[0], "attn_boundary"):
        return 0
    if layerwise_of(args) is not None:
        return 0  # KV of layers has places of its own
    plain = (
        args.pp_size == 1
        and not scheduler.require_mlp_sync
        and not scheduler.enable_lora
        and not args.enable_two_batch_overlap
    )
    return int(runner.model_config.num_hidden_layers) if plain else 0
