"""What is used of SGLang's decode server of a disaggregated pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.protocol import of
from tokenflow_sgl.engine.sglang.request import Req

if TYPE_CHECKING:
    import torch

_DECODE = "sglang.srt.disaggregation.decode"


@of(f"{_DECODE}:DecodeRequest")
class ArrivingReq(Protocol):
    """A request whose KV comes from a prefill server."""

    req: Req
    waiting_for_input: bool


@of(f"{_DECODE}:DecodePreallocQueue")
class RebootstrappedReq(Req, Protocol):
    """A request whose KV a prefill server is to compute once more, as that queue marks it."""

    pd_rebootstrap_in_progress: bool


@of(f"{_DECODE}:DecodePreallocQueue")
class PreallocQueue(Protocol):
    """Requests that wait for memory for their KV."""

    queue: list[ArrivingReq]
    retracted_queue: list[Req]
    held_rebootstrap_reqs: list[Req]
    num_reserved_decode_tokens: int

    def resume_retracted_reqs(self) -> list[Req]:
        """Gives the paused streams that were chosen memory and their KV."""

    def hold_rebootstrap(self, req: RebootstrappedReq) -> None:
        """Lets a prefill server compute KV that a pause of the engine dropped."""

    def _resolve_pending_reqs(self) -> None:
        """What is ready for its KV is known before SGLang sees only what was chosen."""

    def _update_handshake_waiters(self) -> None:
        """What is ready for its KV is known before SGLang sees only what was chosen."""


@of(f"{_DECODE}:DecodeTransferQueue")
class Transfers(Protocol):
    """Requests whose KV is on its way."""

    queue: list[ArrivingReq]


@of("sglang.srt.arg_groups.fields.disagg:Disagg")
class DecodeSettings(Protocol):
    """Settings of a decode server, as `get_disagg` returns them."""

    disaggregation_decode_polling_interval: int
    disaggregation_decode_retraction_backup: str
    """How SGLang keeps retracted KV."""


@of("sglang.srt.speculative.eagle_info:EagleDraftInput")
class DraftInput(Protocol):
    """Drafts of a batch, a row for each request."""

    topk_p: torch.Tensor | None
    topk_index: torch.Tensor | None
    hidden_states: torch.Tensor | None


@of("sglang.srt.speculative.base_spec_worker:BaseSpecWorker")
class DraftWorker(Protocol):
    """The worker that drafts tokens of a speculating server."""

    primary_draft_kv_pool: Any
    """The pool of DeepSeek V4's layer for drafts, which a copy has, too."""
