r"""A policy of one's own: the shortest answer first.

In the simulator, compared with stock SGLang::

    PYTHONPATH=examples tokenflow simulate --trace traces/poisson.jsonl --device rtx4090 \
        --kv-tokens 9000 --policy fcfs,own_policy:ShortestFirst

In a server::

    PYTHONPATH=examples python -m sglang.launch_server --model-path Qwen/Qwen3-8B \
        --scheduler tokenflow --tokenflow-policy own_policy:ShortestFirst

A policy is a class with one method, `decide(state) -> Decision`, that is called once per pass of
the scheduler. It reads no clock and keeps no state: all that it may use is in `State`.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import Cause, Decision, Mode, Preempt, State

MARGIN = 50
"""A stream is preempted for one that has at least so many tokens fewer to come."""
RESERVED_STEPS = 24
"""Decode steps of the running streams for which memory is kept."""


class ShortestFirst:
    """Runs the streams with the fewest tokens to come; preempts one with more for one with fewer.

    Answers are complete sooner on average. A long answer is paused while shorter ones keep coming,
    however little its reader has left to read.
    """

    def decide(self, state: State) -> Decision:
        """Start or resume all that fit, in order; preempt what the first of them needs."""
        streams, memory = state.streams, state.memory
        to_come = streams.expected - streams.generated
        order = np.argsort(to_come, kind="stable")
        queue = order[(streams.waiting | streams.paused)[order]]
        if not len(queue):
            return Decision(Mode.IDLE)  # SGLang goes on by itself
        first = queue[0]
        free = memory.kv.free - memory.kv.promised
        free += int(streams.length[streams.draining].sum())  # of streams preempted just now
        free -= RESERVED_STEPS * int(streams.running.sum())
        missing = int(streams.length[first]) - free
        longer = streams.running & streams.preemptible & (to_come >= to_come[first] + MARGIN)
        victims: list[int] = []
        for index in order[longer[order]][::-1]:  # most to come first
            if missing > 0:
                victims.append(int(index))
                missing -= int(streams.length[index])
        if missing > 0:
            victims = []  # all of them would not be enough
        return Decision(
            Mode.WORKING_SET,
            preempt=tuple(Preempt(int(streams.slot[i]), Cause.POLICY) for i in victims),
            run=tuple(streams.slot[queue].tolist()),
        )
