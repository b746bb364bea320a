"""What the emulated model says, and what it leaves to others."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from tokenflow_sgl_emulator.archs import emulated


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(emulated, "the_device", lambda: None)
    monkeypatch.setattr(emulated, "work_of", lambda _batch: None)
    monkeypatch.setattr(emulated, "waits", lambda: (None, None))
    monkeypatch.setattr(emulated, "take_step", lambda *_: None)
    return emulated.EmulatedForCausalLM(SimpleNamespace(vocab_size=512, num_hidden_layers=2))


def forward(model: Any, ids: list[int], at: list[int], lengths: list[int] | None = None) -> Any:
    """A decode step, or a prefill of prompts of these lengths."""
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: lengths is not None),
        extend_seq_lens=torch.tensor(lengths or []),
    )
    return model(torch.tensor(ids), torch.tensor(at), batch)


def test_a_prompts_last_token_and_its_position_decide_the_next(model: Any) -> None:
    prefill = forward(model, [5, 6, 7, 8, 9], [0, 1, 2, 0, 1], [3, 2])
    decode = forward(model, [7, 9], [2, 1])
    assert torch.equal(prefill.next_token_logits, decode.next_token_logits)
    assert prefill.next_token_logits.shape == (2, 512)


def test_a_prefill_has_the_field_that_a_retracted_answer_is_asked_for(model: Any) -> None:
    """SGLang asserts that it is there, where an answer with log-probabilities is computed anew."""
    assert forward(model, [5, 6], [0, 1], [2]).input_token_logprobs.shape == (0,)
    assert forward(model, [6], [1]).input_token_logprobs is None
