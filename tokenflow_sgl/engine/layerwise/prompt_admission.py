"""Whether a prompt is worth its place among streams whose KV does not fit the device any more.

SGLang admits whatever it has pages for, and with KV layer by layer it has more pages than fit. Each
stream beyond those makes every step longer by the time that the link takes for its KV. As long as
that hides under the layers' compute, one stream more is one token more in each step. From then on
all streams together get fewer tokens per second, so the prompt waits until some have ended. LayerKV
(Eq. 1 to 5) lets prompts wait for the running streams' objectives; SGLang's own scheduler knows of
none, so that the rate of tokens decides here.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds
from tokenflow_sgl.placement import Kernels, Machine, for_batch, lower_bound

Stream = TypeVar("Stream")
"""What names a stream."""
LONGEST_SHARE = 0.5
"""Of the streams for which a prompt first waits, those that have to end at most: a prompt may cost
more than it gives at any time, and the others behind it in the queue wait with it."""


@dataclass(frozen=True, slots=True, eq=False)
class JoiningPrompt:
    """A prompt, and the streams that it would join.

    Attributes:
        pages: Of the prompt in one layer, with what SGLang expects of its answer; >= 1.
        joined: Of each stream that runs or was admitted before it, likewise; of shape (streams,),
            at least two.
        layers: Of the model.
        cells: Of the device, each for one page of one layer.
        speeds: Of a decode step.
    """

    pages: int
    joined: IntArray
    layers: int
    cells: int
    speeds: StepSpeeds


def pays(newcomer: JoiningPrompt, kernels: Kernels | None = None) -> bool:
    """Whether decode steps give at least as many tokens per second with the prompt as without.

    Steps are taken to be as short as any placement of the solver's choices makes them.
    """
    after = np.append(newcomer.joined, newcomer.pages)
    return bool(_rate(after, newcomer, kernels) >= _rate(newcomer.joined, newcomer, kernels))


def hidden_pages(layers: int, cells: int, speeds: StepSpeeds | None) -> int:
    """Pages of one layer with which streams decode together as fast as with all on the device.

    While the layers of a step compute, but for the last, the link fetches pages of a layer from the
    host. Each page of a stream that has layers there has a staging cell, into which the next one
    comes when a layer is done: so half of the layers can be hidden at most. Steps may take a layer
    longer all the same where few streams leave little to choose from.

    Args:
        layers: Of the model.
        cells: Of the device, each for one page of one layer.
        speeds: Of a decode step; None: not known, so that all have to lie on the device.
    """
    fit = cells // layers
    if speeds is None:
        return fit
    fetched = int(speeds.layer * (layers - 1) * speeds.pages)
    halved = cells // (layers - layers // 2 + 1)
    return max(min((cells + fetched) // (layers + 1), halved), fit)


def has_waited(first: Set[Stream], others: Set[Stream]) -> bool:
    """Whether a prompt has waited long enough.

    Args:
        first: Streams that it was first told to wait for.
        others: Those that it would join now.
    """
    return len(first & others) <= LONGEST_SHARE * len(first)


def machine_of(layers: int, cells: int, speeds: StepSpeeds) -> Machine:
    """The device as the solver sees it, with one staging buffer for each stream."""
    compute: FloatArray = np.full(layers, speeds.layer)
    return Machine(compute, speeds.pages, float(cells), Staging.stream)


def _rate(pages: IntArray, newcomer: JoiningPrompt, kernels: Kernels | None) -> float:
    """Tokens per second of all streams together; 0.0: no placement fits."""
    layers = newcomer.layers
    seconds = lower_bound(
        pages.astype(np.float64),
        for_batch(pages.size)(layers),
        machine_of(layers, newcomer.cells, newcomer.speeds),
        kernels,
    )
    return pages.size / seconds
