"""A thousand operations at once on servers that restore prefixes: nothing wrong, nothing held.

Prompts share prefixes, the memory of device and host is nearly full, prefixes are prefetched in
SGLang's own way beside, clients leave in the middle, and the storage fails.

TOKENFLOW_STRESS_SEED begins with another seed, and TOKENFLOW_STRESS_OPERATIONS does so many: too
few fail, because not every way of restoring occurs (of 300, two ranks do a quarter, which was so).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from attacker.aftermath import TROUBLE, Aftermath
from attacker.truth import Subject
from servers.client import Served
from servers.fixtures import SERVER_SIDE
from servers.restoring import LAYERS
from servers.tuned import CHECK_RANKS
from stress.prompts import FORKS, Prompt, ask_all
from stress.storm import Storm

from tokenflow_sgl_emulator.models import make_tiny_model
from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

OPERATIONS = int(os.environ.get("TOKENFLOW_STRESS_OPERATIONS", "1000"))
SEED = int(os.environ.get("TOKENFLOW_STRESS_SEED", "20"))
SETTLE_SECONDS = 90.0
CONTROL = 40
"""Operations after which pages in a wrong order have been noticed."""
FULL = (
    # Twelve clients ask for about 3,000 tokens at a time; all prompts have 6,000.
    *("--max-total-tokens", "1024", "--hicache-ratio", "1.5", "--page-size", "16"),
)
BY_TOKENS = (*("--chunked-prefill-size", "64", "--tokenflow-restore", "splits:SplitAnywhere"),)
BY_LAYERS = (
    *("--chunked-prefill-size", "512", "--tokenflow-restore", "splits:SplitEitherWay"),
    *("--hicache-mem-layout", "layer_first"),
)
TWO_RANKS = ("--scheduler", "tokenflow", "--tp-size", "2", CHECK_RANKS)
WAYS = ("restorations_total", "restored_tokens_total", "restore_fetch_failures_total")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), arch="qwen3", layers=LAYERS)


@pytest.fixture(scope="module")
def prompts(start, model: Path) -> list[Prompt]:
    """What stock SGLang says, one request at a time, with nothing of ours switched on."""
    with start("--max-total-tokens", "4000", "--disable-radix-cache", model=model) as served:
        return ask_all(served)


@pytest.mark.parametrize(
    ("flags", "operations"),
    [
        (BY_TOKENS, OPERATIONS),
        (BY_LAYERS, OPERATIONS),
        ((*BY_TOKENS, *TWO_RANKS), OPERATIONS // 4),
        ((*BY_LAYERS, *TWO_RANKS), OPERATIONS // 4),
    ],
    ids=("by tokens", "by layers", "by tokens, two ranks", "by layers, two ranks"),
)
def test_a_storm_leaves_nothing_behind(start, model, prompts, tmp_path, flags, operations) -> None:
    control, look = tmp_path / "control", tmp_path / "look"
    storage = storage_flags(
        prefetch_tokens=48, read_gbps=0.02, write_gbps=1.0, control=str(control)
    )
    env = {"TOKENFLOW_EMU_LATE_COPIES": "4", "TOKENFLOW_TEST_LOOK": str(look)}
    if "--tp-size" in flags:
        env["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"
    program = str(SERVER_SIDE / "nothing_held.py")
    with start(*FULL, *storage, *flags, env=env, model=model, program=program) as served:
        storm = Storm(served, prompts, FORKS + 1, control, SEED)
        storm.rage(operations)
        print(dict(storm.counts), {name: served.labelled(f"tokenflow:{name}") for name in WAYS})
        assert not storm.wrong, "\n".join(storm.wrong[:10])
        for name in WAYS:
            assert served.labelled(f"tokenflow:{name}") > 0.0, name
        for way in ("computed", "both", *(("layers",) if "layer_first" in flags else ())):
            assert served.labelled("tokenflow:restorations_total", way=way) > 0.0, way
        for outcome in ("aborted", "prefetched"):
            assert storm.counts[outcome], outcome
        look.touch()
        served.flush_when_idle(SETTLE_SECONDS)
        look.unlink()
        probe = Subject("probe", tuple(prompts[0].ids), (), tuple(prompts[0].tokens))
        Aftermath(served, probe, tuple(set(TROUBLE) - {"Traceback"})).check()
        _check_that_only_the_storage_failed(served.log())
        _check_that_it_can_fail(served, prompts, control)


def _check_that_only_the_storage_failed(log: str) -> None:
    """SGLang says how where a call of the storage raised; nothing else has."""
    told = len(re.findall("^Traceback", log, re.MULTILINE))
    assert told == len(re.findall("^ConnectionError: emulated failure", log, re.MULTILINE)), log


def _check_that_it_can_fail(served: Served, prompts: list[Prompt], control: Path) -> None:
    """Pages in the places of others, which are not found out: some answers are wrong."""
    storm = Storm(served, prompts, FORKS + 1, control, SEED, frozenset({"fault"}))
    storm.link(shifted=1.0, checksum=False)
    storm.rage(CONTROL)
    assert storm.wrong, "a wrong order changes nothing"
