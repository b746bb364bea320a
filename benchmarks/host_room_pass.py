"""In how many runs copies lie on the host with room set aside beside them, and what it costs.

    python benchmarks/host_room_pass.py [--turns 3000] [--page 1 --page 16] [--tokens 280000]

SGLang's host pool and ours, without memory and without a server, under the same traffic, in turns:
64 conversations are under way at a time. A turn loads the copy that is there (its runs are counted
then), writes its prompt in one increment, and then its answer in increments of 64 tokens, those of
all conversations mixed. In between conversations rest; where room is short, the one that rests
longest loses its last increment. Printed are the runs and tokens of the copies that are loaded, in
the first and in the last third of the turns, and the CPU time of a call, in microseconds.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's imports warn about third parties
    import torch

    from tokenflow_sgl.engine.kv.host_room import RoomyHostPool, with_room
    from tokenflow_sgl_emulator.bare_host_pool import BareHostPool

PROMPT, ANSWER, INCREMENT = (50, 900), (50, 1200), 64
"""Tokens, evenly spread; those of a proactive write."""
ACTIVE = 64
"""Conversations that are under way."""
MORE_TURNS = 0.82
"""Chance of another turn: 5.5 turns on average, as ShareGPT's."""


class Conversation:
    """Its copy, an increment after the other, and what its turn has yet to write."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, Any]] = []  # (number, slots)
        self.to_write: list[int] = []

    def start_turn(self, chance: random.Random, page: int) -> None:
        """Draw a prompt and an answer."""
        answer = chance.randint(*ANSWER)
        parts = [chance.randint(*PROMPT), *[INCREMENT] * (answer // INCREMENT)]
        self.to_write = [-(-part // page) * page for part in parts][::-1]


class World:
    """A pool and its conversations."""

    def __init__(self, page: int, tokens: int, roomy: bool) -> None:
        self.pool: Any = (with_room(BareHostPool) if roomy else BareHostPool)(page, tokens)
        self.page, self.roomy = page, roomy
        self.chance = random.Random(1)
        self.active: list[Conversation] = []
        self.resting: OrderedDict[int, Conversation] = OrderedDict()
        self.nodes = 0
        self.loads: list[tuple[int, int]] = []  # (runs, tokens)
        self.spent, self.calls = 0.0, 0

    def timed(self, call: Callable[..., Any], *given: Any) -> Any:
        """The call's result; its CPU time is added up."""
        began = time.thread_time()
        found = call(*given)
        self.spent += time.thread_time() - began
        self.calls += 1
        return found

    def write(self) -> None:
        """The next increment of one of the conversations."""
        while len(self.active) < ACTIVE:
            self.active.append(self.next_turn())
        conversation = self.chance.choice(self.active)
        tokens = conversation.to_write.pop()
        while self.pool.available_size() < tokens:
            self.evict()
        self.nodes += 1
        before = conversation.nodes[-1][0] if conversation.nodes else 0
        slots = self.timed(self.ask, self.nodes, before, tokens)
        conversation.nodes.append((self.nodes, slots))
        if not conversation.to_write:
            self.active.remove(conversation)
            if self.chance.random() < MORE_TURNS:
                self.resting[self.nodes] = conversation
            else:  # it has ended, and is evicted in its turn
                self.resting[-self.nodes] = conversation

    def next_turn(self) -> Conversation:
        """One that rests, whose copy is loaded, or a new one."""
        ready = [key for key in self.resting if key > 0]
        if len(ready) > ACTIVE:
            conversation = self.resting.pop(self.chance.choice(ready))
            if conversation.nodes:
                slots = torch.cat([each for _, each in conversation.nodes]).numpy()
                self.loads.append((1 + int((np.diff(slots) != 1).sum()), len(slots)))
        else:
            conversation = Conversation()
        conversation.start_turn(self.chance, self.page)
        return conversation

    def evict(self) -> None:
        """The last increment of the one that rests longest."""
        key = next(iter(self.resting))
        conversation = self.resting[key]
        if conversation.nodes:
            self.timed(self.pool.free, conversation.nodes.pop()[1])
        if not conversation.nodes:
            del self.resting[key]

    def ask(self, node: int, before: int, tokens: int) -> Any:
        """Slots for an increment, as SGLang asks for them."""
        if not self.roomy:
            return self.pool.alloc(tokens)
        pool: RoomyHostPool = self.pool
        with pool.continuing(node, before):
            return pool.alloc(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3000, help="that load a copy")
    parser.add_argument("--page", type=int, action="append", help="default: 1 and 16")
    parser.add_argument("--tokens", type=int, default=280_000, help="of the pool")
    args = parser.parse_args()
    print("| page | pool | tokens per load | runs, first third | last third | µs per call |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for page in args.page or (1, 16):
        worlds = [World(page, args.tokens, roomy) for roomy in (False, True)]
        while len(worlds[0].loads) < args.turns:
            for world in worlds:
                world.write()
        third = args.turns // 3
        for world in worlds:
            loads = np.array(world.loads[: args.turns])
            name = "with room" if world.roomy else "SGLang"
            print(
                f"| {page} | {name} | {loads[:, 1].mean():,.0f} "
                f"| {loads[:third, 0].mean():.1f} | {loads[-third:, 0].mean():.1f} "
                f"| {1e6 * world.spent / world.calls:.0f} |"
            )


if __name__ == "__main__":
    main()
