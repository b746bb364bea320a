"""Which prompts start alike: the tree of a trace's shared prefixes, known before it is served.

A node is a stretch of tokens that always comes as a whole. Nodes below the number of streams are
the streams' own stretches: what no other prompt holds before it, and the answer. The others
are shared by several prompts. As in SGLang's radix tree a stretch counts as the same only after
the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tokenflow_sgl.lab.sim.simulated_streams import IntArray
from tokenflow_sgl.lab.traces.request import TraceRequest, continues


class Prefixes:
    """The nodes that each stream's prompt starts with.

    Args:
        requests: All of them, by their index.
        previous: For a later turn of a session, the turn before it: its prompt goes on after that
            turn's prompt and answer, where the trace's lengths allow it.
        page: Tokens of a page: what is shared is shared by whole pages.

    Attributes:
        paths: By stream: nodes before its own, the first one first.
        shared: By stream: prompt tokens in these nodes.
        tokens: By node: its length; of a stream's own stretch what it has at its end, in full pages
            (the last token of an answer has no KV).
        any: Whether any prompt shares anything.
    """

    def __init__(
        self, requests: Sequence[TraceRequest], previous: Mapping[int, int], page: int = 1
    ) -> None:
        count = len(requests)
        self.paths: list[tuple[int, ...]] = [()] * count
        self.shared: IntArray = np.zeros(count, dtype=np.int64)
        self.tokens = [0] * count
        _Tree(self, requests, page)
        for index in sorted(range(count), key=lambda index: requests[index].turn):
            request = requests[index]
            earlier = previous.get(index)
            if earlier is not None:
                before = requests[earlier]
                context = before.prompt_tokens + before.output_tokens
                if request.prompt_tokens > context and continues(before, request):
                    self.paths[index] = (*self.paths[earlier], earlier)
                    self.shared[index] = (context - 1) // page * page
            whole = (request.prompt_tokens + request.output_tokens - 1) // page * page
            self.tokens[index] = whole - int(self.shared[index])
        self.any = any(self.paths)


class _Tree:
    """The prefix blocks of all prompts as a tree whose chains without a branch are one node."""

    def __init__(self, prefixes: Prefixes, requests: Sequence[TraceRequest], page: int) -> None:
        step: dict[tuple[int, int], int] = {}  # (block before, id) -> place in the tree
        parent, reach, passed = [-1], [0], [0]  # reach: tokens up to the end of the block
        ends: dict[int, int] = {}
        for index, request in enumerate(requests):
            if not request.prefix:
                continue
            at = 0
            for block in request.prefix:
                after = step.setdefault((at, block.id), len(parent))
                if after == len(parent):
                    parent.append(at)
                    reach.append(reach[at] + block.tokens)
                    passed.append(0)
                passed[after] += 1
                at = after
            ends[index] = at
        # Blocks come after their parents. One that all go on to belongs to its parent.
        node = [-1] * len(parent)
        for place in range(1, len(parent)):
            before = parent[place]
            if passed[place] < 2:
                continue  # no other's: a part of the stream's own stretch
            if before and passed[before] == passed[place]:
                node[place] = node[before]
            else:
                node[place] = len(prefixes.tokens)
                prefixes.tokens.append(0)
            whole = reach[place] // page - reach[before] // page
            prefixes.tokens[node[place]] += whole * page
        for index, at in ends.items():
            path: list[int] = []
            while at:
                here = node[at]
                if here >= 0 and prefixes.tokens[here] and (not path or path[-1] != here):
                    path.append(here)
                at = parent[at]
            prefixes.paths[index] = tuple(reversed(path))
            prefixes.shared[index] = sum(prefixes.tokens[n] for n in path)
