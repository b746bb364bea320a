"""What a paused stream of a decode server drafts from when it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from fakes import sglang

from tokenflow_sgl.engine.decode_server.next_drafts import keep_of_batch, keep_of_relay

CHANCES, TOKENS = torch.rand(3, 2), torch.arange(6).reshape(3, 2)
HIDDEN = torch.rand(3, 8)


class Request(sglang.Request):
    """One that has what the prefill server sent of its first token."""

    output_topk_p = output_topk_index = hidden_states_tensor = "sent"


def relay(**given: Any) -> Any:
    found = {"need_topk": True, "need_hidden_states": True}
    found |= {"topk_p_buf": CHANCES, "topk_index_buf": TOKENS, "hidden_states_buf": HIDDEN}
    return SimpleNamespace(**(found | given))


def assert_has(request: Any, row: int) -> None:
    assert torch.equal(request.output_topk_p, CHANCES[row])
    assert torch.equal(request.output_topk_index, TOKENS[row])
    assert torch.equal(request.hidden_states_tensor, HIDDEN[row])


def test_with_overlap_they_lie_at_its_place() -> None:
    request = Request(row=2)
    keep_of_relay(relay(), request)
    assert_has(request, 2)


def test_without_overlap_they_lie_in_the_row_of_the_batch() -> None:
    stays, leaves = Request(), Request()
    drafts = SimpleNamespace(topk_p=CHANCES, topk_index=TOKENS, hidden_states=HIDDEN)
    keep_of_batch(SimpleNamespace(spec_info=drafts, reqs=[stays, leaves]), [leaves])
    assert_has(leaves, 1)
    assert stays.output_topk_p == "sent"


def test_a_draft_model_that_reads_no_hidden_states_keeps_none() -> None:
    request = Request(row=0)
    keep_of_relay(relay(need_hidden_states=False, hidden_states_buf=None), request)
    assert torch.equal(request.output_topk_index, TOKENS[0])
    assert request.hidden_states_tensor == "sent"


def test_without_drafts_nothing_is_kept() -> None:
    request = Request(row=0)
    keep_of_relay(relay(need_topk=False, topk_p_buf=None, topk_index_buf=None), request)
    keep_of_batch(SimpleNamespace(spec_info=None, reqs=[request]), [request])
    nothing = SimpleNamespace(topk_p=None, topk_index=None, hidden_states=None)
    keep_of_batch(SimpleNamespace(spec_info=nothing, reqs=[request]), [request])
    assert request.output_topk_p == request.hidden_states_tensor == "sent"
