"""The random attacker of the tests against real servers: ours, and stock SGLang beside it.

What it expects of each answer are stock SGLang's tokens, to the letter. On a GPU another batch may
round otherwise, so a fault of ours counts only if the same attack leaves stock SGLang unharmed.
"""

from __future__ import annotations

import random
from pathlib import Path

from attacker.arenas import FORCED, LARGE_HOST, NO_READERS, TOKENFLOW
from attacker.campaign import Campaign
from attacker.truth import subjects
from journal import Figures, WrongError
from machine import CHECKED, Machine

from tokenflow_sgl_emulator.models import make_tiny_model

PAGES = ("--page-size", "16")
ARENAS = {
    "shipped, page 16": (*TOKENFLOW, *LARGE_HOST, *PAGES),
    "forced, page 1": (*FORCED, *LARGE_HOST),
}
STOCK = ("--enable-hierarchical-cache", *LARGE_HOST, *PAGES)
STOCK_SHARE = 0.2
"""Of the time, for the attack on stock SGLang."""
RESTS = frozenset({"rests"})
"""Left out: clients that look away do so for longer than a part may take."""
SEED = 15


def attack(machine: Machine, minutes: float, folder: Path) -> Figures:
    """Attack for so long.

    Raises:
        WrongError: Something was wrong with ours, and nothing with stock SGLang.
    """
    model, again = (
        make_tiny_model(machine.home / name, "qwen3", layers=2) for name in ("model", "again")
    )
    given = ("--model-path", str(model), *(() if machine.toy else ("--dtype", "float16")))
    steady = () if machine.toy else ("--enable-deterministic-inference",)
    ample = (*steady, "--max-total-tokens", "16384")
    with machine.served(folder, "known", ample, model=given) as served:
        known = subjects(served, prompts())
    found: Figures = {"minutes": minutes}
    shares = {name: (1 - STOCK_SHARE) / len(ARENAS) for name in ARENAS} | {"stock": STOCK_SHARE}
    for name, share in shares.items():
        options = (*steady, *ARENAS.get(name, STOCK))
        without = NO_READERS if name == "stock" else RESTS
        label = name.replace(", ", "-").replace(" ", "-")
        with machine.served(folder, label, options, model=given, env=CHECKED) as served:
            campaign = Campaign(served, known, again, SEED, without)
            found[name] = _attacked(campaign, 60.0 * minutes * share)
            if name != "stock":
                found[name]["preemptions"] = served.total("tokenflow:preemptions_total")
    wrong = [name for name in ARENAS if found[name]["wrong"]]
    if wrong and not found["stock"]["wrong"]:
        raise WrongError(f"the attacker found something in {', '.join(wrong)}", found)
    if not all(found[name]["preemptions"] for name in ARENAS):
        raise WrongError("a server paused nothing: nothing is shown", found)
    return found


def _attacked(campaign: Campaign, seconds: float) -> Figures:
    wrong = ""
    try:
        campaign.attack(seconds)
    except AssertionError as error:
        wrong = str(error)[:6000]
    return {"wrong": wrong, "counts": dict(campaign.counts), "growth": campaign.growth()}


def prompts() -> list[list[int]]:
    """Sixteen, of which each four begin alike."""
    draw = random.Random(6)

    def drawn(tokens: int) -> list[int]:
        return [draw.randrange(10, 200) for _ in range(tokens)]

    return [
        beginning + drawn(draw.randrange(4, 40)) for beginning in 4 * list(map(drawn, 4 * [48]))
    ]
