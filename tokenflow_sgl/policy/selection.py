"""Which streams fit: the utility of running a stream, and its maximum under memory and batch size.

TokenFlow section 3.3: maximise sum x_i v_i (t - t_overhead) - gamma sum (1 - x_i) phi_i,
subject to sum x_i l_i <= M and sum x_i <= B. The paper prints the penalty with x_i
instead of (1 - x_i), which makes an almost empty buffer *less* attractive and contradicts
its text; `Penalty.PRINTED` keeps that for comparison. phi is of seconds of slack, not of
tokens, so that it has no hidden unit.

Up to the constant -gamma sum phi_i the objective is linear in x, with the utilities below.
"""

from __future__ import annotations

import enum

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, State

SWAP_DEPTH = 24
"""Border elements on each side that local search looks at."""


class Penalty(enum.Enum):
    """Which streams pay for a nearly empty buffer."""

    CORRECTED = 1.0
    """Streams that are left out: an urgent stream gains by running."""
    PRINTED = -1.0
    """Streams that run, as Eq. 3 is printed."""


def utilities(
    state: State,
    index: IntArray,
    *,
    horizon: float,
    overhead: FloatArray,
    gamma: float,
    penalty: Penalty = Penalty.CORRECTED,
    tau: tuple[float, float] = (0.10, 0.20),
) -> FloatArray:
    """Utility of running each stream of `index` for the next `horizon` seconds.

    overhead: seconds of it that each loses to its context switch. gamma: weight of the
    penalty, in seconds of full-value generation. v_i is the weight of Eq. 1 at the
    buffer that the stream has now (a stream far ahead of its reader is worth 0).
    """
    streams = state.streams
    started = streams.seen[index] > 0
    slack = np.where(started, state.slack[index], 0.0)
    unread = np.maximum(slack, 0.0) * streams.rate[index] / streams.read_length_of(index)
    value = np.clip((tau[1] - unread) / (tau[1] - tau[0]), 0.0, 1.0)
    useful = np.maximum(horizon - overhead, 0.0)
    risk = np.exp(-np.maximum(slack, 0.0))
    utility: FloatArray = value * useful + penalty.value * gamma * risk
    return utility


def select(utility: FloatArray, size: IntArray, capacity: int, limit: int) -> BoolArray:
    """Streams to run: near the maximum total utility within `capacity` tokens and `limit` rows.

    Greedy by utility per token and by utility, the better of both improved by local
    search: adding, and exchanging one in for one out or one for two.
    """
    positive = np.nonzero((utility > 0.0) & (size <= capacity))[0]
    if not len(positive) or limit <= 0:
        return np.zeros(len(utility), dtype=np.bool_)
    orders = (
        positive[np.argsort(-utility[positive] / np.maximum(size[positive], 1), kind="stable")],
        positive[np.argsort(-utility[positive], kind="stable")],
    )
    found = [
        _improve(_greedy(order, size, capacity, limit), order, utility, size, capacity, limit)
        for order in orders
    ]
    best = max(found, key=lambda chosen: float(utility[chosen].sum()))
    mask = np.zeros(len(utility), dtype=np.bool_)
    mask[best] = True
    return mask


def _greedy(order: IntArray, size: IntArray, capacity: int, limit: int) -> list[int]:
    chosen: list[int] = []
    room = capacity
    for index in order.tolist():
        if len(chosen) == limit:
            break
        if size[index] <= room:
            chosen.append(index)
            room -= int(size[index])
    return chosen


def _improve(
    chosen: list[int],
    order: IntArray,
    utility: FloatArray,
    size: IntArray,
    capacity: int,
    limit: int,
) -> list[int]:
    """Local search around the border of a greedy solution; each step gains utility."""
    room = capacity - int(size[chosen].sum())
    inside = set(chosen)
    for _ in range(2 * SWAP_DEPTH):
        outside = [i for i in order.tolist() if i not in inside][:SWAP_DEPTH]
        border = sorted(inside, key=lambda i: utility[i])[:SWAP_DEPTH]
        move = _best_move(outside, border, utility, size, room, limit - len(inside))
        if move is None:
            break
        enter, leave = move
        inside.difference_update(leave)
        inside.update(enter)
        room += int(size[list(leave)].sum()) - int(size[list(enter)].sum())
    return sorted(inside)


def _best_move(
    outside: list[int],
    border: list[int],
    utility: FloatArray,
    size: IntArray,
    room: int,
    rows: int,
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(streams that enter, streams that leave) with the largest gain, or None if nothing gains."""
    best: tuple[float, tuple[int, ...], tuple[int, ...]] = (1e-12, (), ())
    for new in outside:
        if rows > 0 and size[new] <= room and utility[new] > best[0]:
            best = (float(utility[new]), (new,), ())
    out_u, out_s = utility[outside], size[outside]
    for old in border:
        space = room + int(size[old])
        fits = np.nonzero(out_s <= space)[0]
        if not len(fits):
            continue
        one = fits[np.argmax(out_u[fits])]
        gain = float(out_u[one] - utility[old])
        if gain > best[0]:
            best = (gain, (outside[one],), (old,))
        if rows > 0:
            both = np.nonzero(out_s[fits] <= space - out_s[one])[0]
            both = both[fits[both] != one]
            if len(both):
                two = fits[both[np.argmax(out_u[fits[both]])]]
                gain = float(out_u[one] + out_u[two] - utility[old])
                if gain > best[0]:
                    best = (gain, (outside[one], outside[two]), (old,))
    return (best[1], best[2]) if best[1] else None
