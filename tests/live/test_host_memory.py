"""Host memory of a server by what its machine has, where no option says how much."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

import pytest
from servers.fixtures import SERVER_SIDE

from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.lab.demo.server import ServerError

pytestmark = pytest.mark.engine

PROGRAM = str(SERVER_SIDE / "small_machine.py")
TOKENS = 2000
UNSAID = ("--hicache-host-memory-fraction", "0.8", "--max-total-tokens", str(TOKENS))
"""SGLang's default, spelled out: no option sizes the host's pool."""
TOKENFLOW = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery", *UNSAID)
STOCK = ("--enable-hierarchical-cache", *UNSAID)
DEVICE = 2001 * 512
"""Bytes of KV of the tiny model: two layers of two heads of 16 values, key and value, 4 bytes."""
MOST = 0.8 * 0.95
"""Share of what is free that SGLang takes."""
PLENTY = 100 * 10**9


def machine(free: float, share: int | None = None) -> dict[str, str]:
    """The environment of a server: bytes that are free there, and for each of its devices."""
    shared = {} if share is None else {"TOKENFLOW_TEST_SHARE": str(share)}
    return {"TOKENFLOW_TEST_FREE": str(int(free)), **shared}


def said(served: Any) -> list[tuple[float, int, float]]:
    """Of each rank: megabytes, ranks and ratio, as its line says them."""
    line = r"host KV: ([\d.]+) MB per rank on (\d+) ranks? of this machine, ([\d.]+) times"
    found = re.findall(line, served.log())
    return [(float(size), int(ranks), float(ratio)) for size, ranks, ratio in found]


def info(served: Any) -> dict[str, Any]:
    """What the server says of itself."""
    with urllib.request.urlopen(f"{served.server.url}/server_info", timeout=60) as response:
        found: dict[str, Any] = json.loads(response.read())
    return found


def pools(served: Any) -> list[int]:
    """Tokens of each pool that SGLang has made."""
    return [int(each) for each in re.findall(r"KV host pool: (\d+) tokens", served.log())]


@pytest.mark.parametrize(
    ("share", "ratio"), [(None, 2.0), (PLENTY, 4.0), (int(3 * DEVICE / MOST), 3.0)]
)
def test_it_is_as_much_as_helps_and_a_devices_share_allows(
    start, prompts, reference, share, ratio
) -> None:
    with start(*TOKENFLOW, program=PROGRAM, env=machine(PLENTY, share)) as served:
        ((size, ranks, said_ratio),) = said(served)
        assert (ranks, said_ratio) == (1, ratio)
        assert size == pytest.approx(ratio * DEVICE / 1e6, rel=0.01)
        assert pools(served) == [pytest.approx(ratio * TOKENS, abs=2)]
        assert info(served)["tokenflow_host_ratio"] == pytest.approx(ratio, rel=0.001)
        assert served.outputs(prompts, stream=True) == reference
        assert served.total("tokenflow:preemptions_total") > len(prompts)
        served.assert_clean()


@pytest.mark.parametrize(
    ("flags", "count"),
    [((), 1), (("--tp-size", "2"), 2), (("--dp-size", "2"), 2)],
    ids=("one rank", "two ranks", "two replicas"),
)
def test_a_small_machine_has_less_and_all_ranks_together_fit(
    start, prompts, reference, flags, count
) -> None:
    """A rank of two has half of the KV; a replica has all of it, and half of the machine."""
    device = DEVICE / 2 if "--tp-size" in flags else DEVICE
    free = count * device / MOST
    env = {**machine(free, PLENTY), "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with start(*TOKENFLOW, *flags, program=PROGRAM, env=env) as served:
        lines = said(served)
        assert [(ranks, ratio) for _, ranks, ratio in lines] == [(count, 1.0)] * count
        assert sum(size for size, _, _ in lines) * 1e6 < free
        assert pools(served) == [pytest.approx(TOKENS, abs=2)] * count
        assert info(served)["tokenflow_host_ratio"] == pytest.approx(1.0, rel=0.001)
        assert served.outputs(prompts, stream=True) == reference
        served.assert_clean()


def test_ranks_of_unlike_machines_agree_on_the_least(start, prompts, reference) -> None:
    """In one machine, of which the second rank sees half."""
    unlike = {"TOKENFLOW_TEST_UNLIKE": str(int(DEVICE / MOST / 2)), **machine(DEVICE / MOST)}
    env = {**unlike, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with start(*TOKENFLOW, "--tp-size", "2", program=PROGRAM, env=env) as served:
        assert [ratio for _, _, ratio in said(served)] == [0.5, 0.5]
        assert served.outputs(prompts, stream=True) == reference
        served.assert_clean()


def test_sglang_gives_each_replica_all_there_is(start) -> None:
    """The control: together its replicas have more than is free."""
    free = 2 * DEVICE / MOST
    with start(*STOCK, "--dp-size", "2", program=PROGRAM, env=machine(free)) as served:
        assert pools(served) == [pytest.approx(2 * TOKENS, abs=2)] * 2
        assert free < 2 * 2 * DEVICE


def test_a_machine_without_any_refuses_and_says_what_to_do(start) -> None:
    sentence = (
        "(?s)KV of paused streams has no room in host memory: 10.7 GB is free here, of which "
        "SGLang leaves 10.7 GB.*or start with --tokenflow-hicache off"
    )
    with (
        pytest.raises(ServerError, match=sentence),
        start(*TOKENFLOW, program=PROGRAM, env=machine(0)),
    ):
        pass


def test_what_it_says_to_do_helps(start, prompts, reference) -> None:
    off = ("--tokenflow-hicache", "off")
    with start(*TOKENFLOW, *off, program=PROGRAM, env=machine(0)) as served:
        assert not said(served)
        assert "tokenflow_host_ratio" not in info(served)
        assert served.outputs(prompts, stream=True) == reference


def test_a_size_that_is_asked_for_stands(start) -> None:
    asked = ("--hicache-ratio", "1.5")
    with start(*TOKENFLOW, *asked, program=PROGRAM, env=machine(PLENTY, PLENTY)) as served:
        assert said(served) == [(pytest.approx(1.5 * DEVICE / 1e6, rel=0.01), 1, 1.5)]
        assert pools(served) == [pytest.approx(1.5 * TOKENS, abs=2)]


WINDOWS = ("--swa-full-tokens-ratio", "0.75", "--skip-tokenizer-init")
COMPRESSED = (*WINDOWS, *UNSAID[:2], "--max-total-tokens", "3072")


def test_deepseek_v4_needs_no_ratio(start, folder_of) -> None:
    """What it takes is at least what its pools have, which SGLang counts one by one."""
    flags = ("--scheduler", "tokenflow", *COMPRESSED)
    with start(*flags, program=PROGRAM, env=machine(PLENTY), model=folder_of("v4")) as served:
        ((size, _, ratio),) = said(served)
        assert ratio == 2.0
        made = re.findall(r"layers=(\d+), pages=(\d+), \w+_bytes=(\d+)", served.log())
        bytes_made = sum(int(layers) * int(pages) * int(each) for layers, pages, each in made)
        assert 0.8 * size * 1e6 < bytes_made < size * 1e6
    small = machine(size * 1e6 / 2 / MOST)
    with start(*flags, program=PROGRAM, env=small, model=folder_of("v4")) as served:
        assert [ratio for _, _, ratio in said(served)] == [1.0]


def test_sglang_refuses_deepseek_v4_without_one(start, folder_of) -> None:
    flags = ("--enable-hierarchical-cache", *COMPRESSED)
    with (
        pytest.raises(ServerError, match="does not support DeepSeekV4TokenToKVPool"),
        start(*flags, program=PROGRAM, env=machine(PLENTY), model=folder_of("v4")),
    ):
        pass


DECODE = ("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake")


@pytest.mark.skipif(not at_least("0.5.23"), reason="refused there")
@pytest.mark.parametrize("backup", ["host_pool", "cpu_tensor"])
def test_a_decode_server_takes_no_more_than_there_is(start, backup) -> None:
    flags = (*TOKENFLOW, *DECODE, "--disaggregation-decode-retraction-backup", backup)
    for free, ratio in ((PLENTY, 2.0), (DEVICE / MOST, 1.0)):
        with start(*flags, program=PROGRAM, env=machine(free)) as served:
            assert [each for _, _, each in said(served)] == [ratio]
            made = [pytest.approx(ratio * TOKENS, abs=2)] if backup == "host_pool" else []
            assert pools(served) == made
