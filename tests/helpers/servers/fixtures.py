"""Real SGLang servers on the CPU platform, with and without the scheduler, and what they say."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers.client import Served
from servers.last_words import telling_why
from servers.tuned import spelled_out

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl_emulator.draft_models import KINDS, make_tiny_draft, make_tiny_mtp
from tokenflow_sgl_emulator.latent_draft_models import make_tiny_latent_mtp
from tokenflow_sgl_emulator.models import make_tiny_lora, make_tiny_model
from tokenflow_sgl_emulator.state_draft_models import make_tiny_deltas_mtp

SERVER_SIDE = Path(__file__).parents[1] / "server_side"
"""Modules that servers can import: policies by name, and programs that start broken servers."""
BROKEN = str(SERVER_SIDE / "broken_server.py")
MODULE = "sglang.launch_server"
COLD = (sys.executable, "-m", MODULE)
"""A launcher as users start SGLang: it imports everything anew."""

FEW = 2
"""Decoder layers that most tiny models make do with: half of a server's time goes by in them."""
LAYERS = {"qwen3.5": 4}
"""Those of models that need more: one attention layer in four."""

STARTING = 450.0
"""Seconds that a start may take: 100 where all is imported anew, and more on a busy machine."""

THINK_START = 205
"""Token that begins the thinking of the model `thinker`."""

Start = Callable[..., Any]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models."""
    folder = tmp_path_factory.mktemp("models")
    for arch in ("qwen3", "qwen3-window", "deepseek", "lfm2", "qwen3.5"):
        make_tiny_model(folder / arch, arch=arch, layers=LAYERS.get(arch, FEW))
    make_tiny_lora(folder / "lora", folder / "qwen3")
    return folder


@pytest.fixture(scope="session")
def drafting(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """A folder with draft models, and with models that have drafts of their own (MTP).

    The former are for a tiny Llama and for a tiny Qwen3, with windows and without, which are there,
    too: DP attention needs the latter. The latter are a Llama, a DeepSeek and a Qwen3.5.
    """
    folder = tmp_path_factory.mktemp("drafts")
    target = make_tiny_model(folder / "llama", "llama")
    make_tiny_draft(folder / "eagle", target, "eagle")
    make_tiny_draft(folder / "eagle3", target, "eagle3")
    make_tiny_mtp(folder / "mtp", target)
    make_tiny_latent_mtp(folder / "deepseek-mtp", models / "deepseek")
    make_tiny_deltas_mtp(folder / "qwen3.5-mtp", models / "qwen3.5")
    deeper = make_tiny_model(folder / "qwen3-deeper", "qwen3")  # EAGLE3 looks into three layers
    make_tiny_draft(folder / "eagle3-qwen3", deeper, "eagle3")
    windows = make_tiny_model(folder / "windows", "qwen3-window")
    for kind in KINDS:
        make_tiny_draft(folder / f"windows-{kind}", windows, kind)
    return folder


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory, models: Path, warm: tuple[str, ...]) -> Start:
    """`with start(*flags) as served`: a real server, strict memory checks on.

    A warm one, of a module or a script that stands for it, unless a launcher is named. Flags: words
    of `tuned`, too. Options: as of `SglangServer`.
    """

    @contextmanager
    def run(
        *flags: str,
        program: str = MODULE,
        launcher: tuple[str, ...] | None = None,
        env: dict[str, str] | None = None,
        model: Path | None = None,
        **options: float,
    ) -> Iterator[Served]:
        # An idle SGLang spins on a core; servers of other modules may be up meanwhile.
        folder = tmp_path_factory.mktemp("server")
        own, variables = spelled_out(flags, folder)
        common = ["--enable-metrics", "--random-seed", "1", "--sleep-on-idle"]
        if not any(flag.startswith("--hicache") or flag == "--config" for flag in flags):
            # SGLang's default, which it does not even try with less than 10 GiB of host memory.
            common += ["--hicache-ratio", "2"]
        with (
            SglangServer(
                model or models / "qwen3",
                [*common, *own],
                log_path=folder / "log",
                launcher=launcher or (*warm, program),
                env={
                    "SGLANG_PLATFORM": "tokenflow_emu",
                    "HF_HUB_OFFLINE": "1",
                    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
                    # SGLang compiles how it samples with a seed, in every server: half a minute.
                    "TORCHDYNAMO_DISABLE": "1",
                    **variables,
                    **(env or {}),
                    # What this process imports its servers import too, from the same tree.
                    "PYTHONPATH": os.pathsep.join(
                        filter(
                            None,
                            [
                                (env or {}).get("PYTHONPATH", str(SERVER_SIDE)),
                                os.getenv("PYTHONPATH"),
                            ],
                        )
                    ),
                },
                **{"startup_timeout_s": STARTING, **options},
            ) as server,
            telling_why(server.log_path),
        ):
            yield Served(server)

    return run


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Twelve prompts, some longer than the prefill chunk of the tests."""
    rng = random.Random(5)
    return [[rng.randrange(10, 200) for _ in range(rng.randrange(8, 90))] for _ in range(12)]


@pytest.fixture(scope="session")
def families() -> list[list[int]]:
    """Prompts of which each four begin alike: what one loads, another may be about to read."""
    rng = random.Random(6)
    beginnings = [[rng.randrange(10, 200) for _ in range(48)] for _ in range(4)]
    return [
        [*beginning, *(rng.randrange(10, 200) for _ in range(rng.randrange(4, 40)))]
        for beginning in beginnings
        for _ in range(4)
    ]


@pytest.fixture(scope="session")
def undisturbed(
    start: Start,
    prompts: list[list[int]],
    families: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[list[list[int]]]:
    """What stock SGLang answers, one request at a time, with nothing of ours switched on."""

    def said() -> list[list[list[int]]]:
        with start("--max-total-tokens", "4000") as served:
            return [
                [served.outputs([prompt])[0] for prompt in asked] for asked in (prompts, families)
            ]

    return once_in_a_run(tmp_path_factory.getbasetemp(), "undisturbed", said)


def once_in_a_run(folder: Path, name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, of one of the processes that share a run of the tests.

    It takes a server of its own. folder: pytest's, of this process.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker has a folder of its own in that of the run
    path = folder / f"{name}.json"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


@pytest.fixture(scope="session")
def reference(undisturbed: list[list[list[int]]]) -> list[list[int]]:
    """Stock SGLang's answers to `prompts`."""
    return undisturbed[0]


@pytest.fixture(scope="session")
def expected(undisturbed: list[list[list[int]]]) -> list[list[int]]:
    """Stock SGLang's answers to `families`."""
    return undisturbed[1]


@pytest.fixture(scope="session")
def think_end(reference: list[list[int]]) -> int:
    """The token that ends the thinking of `thinker`.

    The first of `reference` has it at index 20 or before, all of them seldom: where it comes again
    it has no text, and no reader sees it.
    """
    return min(reference[0][:21], key=lambda token: sum(said.count(token) for said in reference))


@pytest.fixture(scope="session")
def thinker(models: Path, think_end: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with one of the words that it says spelled as the end of its thinking.

    Another word, which no prompt has, is spelled as the beginning.
    """
    words = {"</think>": think_end, "<think>": THINK_START}
    return respelled(
        models / "qwen3", tmp_path_factory.mktemp("thinker"), words, added=True, special=True
    )


def respelled(
    model: Path, folder: Path, words: dict[str, int], *, added: bool = False, special: bool = False
) -> Path:
    """A copy of a tiny model in which these tokens are spelled so.

    added: a text that spells one is that token. special: it is left out of texts.
    """
    copy = folder / model.name
    shutil.copytree(model, copy)
    path = copy / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    kind = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for spelled, number in words.items():
        word = next(word for word, each in vocabulary.items() if each == number)
        vocabulary[spelled] = vocabulary.pop(word)
        if added:
            token = {"id": number, "content": spelled, "special": special, **kind}
            content["added_tokens"].append(token)
    path.write_text(json.dumps(content))
    return copy
