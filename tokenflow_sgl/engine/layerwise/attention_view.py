"""What SGLang's attention backends have to be shown, to find KV that lies layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tokenflow_sgl.engine.layerwise.layer_executor import StepRow
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.batch import ForwardStep


class AttentionView(Protocol):
    """SGLang's own backend, and the places that it reads in each layer.

    Attributes:
        inner: The backend.
    """

    inner: Any

    def begin(self, forward_batch: ForwardStep, step: Sequence[StepRow]) -> None:
        """Prepare the backend for a step, whose cells are in the table now.

        Args:
            forward_batch: SGLang's.
            step: Its streams; none: no stream's KV is read.
        """
        ...

    def look(self, layer: int) -> None:
        """From now on in this layer."""
        ...


def refused_backend(name: str, why: str) -> UnsupportedError:
    """The error for SGLang's attention backend of this name."""
    return UnsupportedError(
        f"--tokenflow-layerwise does not work with --attention-backend {name}: {why}; remove one "
        "of the two."
    )
