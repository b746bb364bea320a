"""Penalty rows of resumed requests: what is counted, and how it gets to the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fakes.sglang import Batch, Request
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedPenalizerOrchestrator,
    BatchedRepetitionPenalizer,
)

from tokenflow_sgl.engine.kv import penalties


def resumed(output):
    sampling = SimpleNamespace(frequency_penalty=0.5, repetition_penalty=1.2)
    return Request(
        origin_input_ids=[1, 2],
        output_ids=output,
        sampling_params=sampling,
        tokenizer=None,
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_rows_are_those_of_an_undisturbed_run_and_come_in_one_copy(monkeypatch, overlap) -> None:
    requests = [resumed([3, 3, 4]), resumed([5]), resumed([6, 7])]
    batch = Batch(*requests)
    batch.device = "cpu"
    kinds = {BatchedFrequencyPenalizer, BatchedRepetitionPenalizer}
    orchestrator = BatchedPenalizerOrchestrator(vocab_size=10, batch=batch, penalizers=kinds)
    batch.sampling_info = SimpleNamespace(penalizer_orchestrator=orchestrator)
    copies = []
    made = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *a, **k: copies.append(made(*a, **k)) or copies[-1])
    penalties.rebuild_rows(batch, requests[1:] + requests[:1], overlap=overlap)
    assert len(copies) == 1
    frequency = orchestrator.penalizers[BatchedFrequencyPenalizer].cumulated_frequency_penalties
    counted = [[2, 3, 3], [2], [2, 6]] if overlap else [[3, 3, 4], [5], [6, 7]]
    for row, tokens in zip(frequency.tolist(), counted, strict=True):
        assert row == [0.5 * tokens.count(token) for token in range(10)]
    repetition = orchestrator.penalizers[BatchedRepetitionPenalizer].cumulated_repetition_penalties
    for row, tokens in zip(repetition.tolist(), counted, strict=True):
        assert row == pytest.approx([1.2 if token in tokens else 1.0 for token in range(10)])
