"""Two servers that have to say the same: stock SGLang, and one that pauses, restores or places KV.

Greedy answers are compared token by token. On a GPU even stock SGLang may answer otherwise when
its batches are others, since sums are rounded in another order. So every answer is also held
against stock SGLang's own log probabilities, given that answer's own beginning: a token is right
if no other token was more likely by more than rounding makes out. How much that is say stock's own
answers, which are judged in the same way. A server that is broken on purpose has to be noticed.
"""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from journal import Figures, WrongError
from machine import CHECKED, Machine
from plugin.made_up_model import BREAK_VARIABLE
from servers.client import Served

from tokenflow_sgl.lab.demo.server import ServerError
from tokenflow_sgl.lab.observe.metrics_page import scrape

Tokens = list[int]
STEADY = ("--enable-deterministic-inference", "--disable-prefill-cuda-graph")
"""SGLang's kernels whose sums do not depend on the batch."""
RATE = 20.0
"""Tokens per second that each client reads."""
TIE = 0.05
"""Of log probability: two tokens that are as near may change places by rounding alone."""
ANSWER_SECONDS = 300.0
CONTROL = "broken"
STORAGE_VARIABLE = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
PROMPT_TOKENS = (300, 1000)
"""Ids that prompts are drawn from."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared.

    Attributes:
        ours: SGLang's options of the server under test.
        rose: Counters of ours that have to rise, else nothing is shown.
        both: SGLang's options of both.
        streams: Number of answers.
        lengths: Shortest and longest prompt, tokens.
        tokens: Of each answer.
        share: KV tokens of ours, over what all streams need together (or, one by one, the longest).
        one_by_one: One stream at a time, so that all batches are the same.
        again: Flush, and ask everything once more: what a storage has comes back from it.
        control: Copies back from the host are broken on purpose in one more server.
        model: SGLang's options that say what is served; None: the machine's model.
        beside: Options of more servers by their names, asked likewise; none of ours is on there.
    """

    ours: tuple[str, ...]
    rose: tuple[str, ...]
    both: tuple[str, ...] = ()
    streams: int = 24
    lengths: tuple[int, int] = (128, 1024)
    tokens: int = 400
    share: float = 1 / 3
    one_by_one: bool = False
    again: bool = False
    control: bool = False
    model: tuple[str, ...] | None = None
    beside: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def prompts(self) -> list[Tokens]:
        """Always the same ones."""
        draw = random.Random(0)
        return [
            [draw.randrange(*PROMPT_TOKENS) for _ in range(draw.randint(*self.lengths))]
            for _ in range(self.streams)
        ]

    def needed(self) -> int:
        """KV tokens that the streams need together; one by one those of the longest."""
        sizes = [len(prompt) + self.tokens for prompt in self.prompts()]
        return max(sizes) if self.one_by_one else sum(sizes)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its tokens, seconds until the first one, and seconds until its end."""

    tokens: Tokens
    first_s: float
    whole_s: float


Said = dict[str, list[Answer]]
"""Answers to all prompts, by who gave them."""


def compare(machine: Machine, case: Case, folder: Path) -> Figures:
    """Run all servers, and judge.

    Raises:
        WrongError: A token is wrong, nothing was paused or restored, or the control went unnoticed.
    """
    steady = () if machine.toy else STEADY
    said: Said = {}
    options: Sequence[str] = (*small(case), *case.ours)
    try:
        counted = _asked(machine, case, folder, "ours", (*steady, *options), said)
    except ServerError as error:
        if not steady:
            raise
        print(f"    not with {steady[0]}: {str(error)[-300:]}", flush=True)
        steady = ()
        counted = _asked(machine, case, folder, "ours", options, said)
    for name, more in case.beside:
        _asked(machine, case, folder, name, (*steady, *small(case), *more), said)
    if case.control:
        env = {BREAK_VARIABLE: "1"}
        options = (*steady, *small(case), *case.ours)
        broken = machine.served(folder, CONTROL, options, model=case.model, env=env)
        with broken as served:
            said[CONTROL] = ask(served, case)
    options = (*steady, *case.both, "--max-total-tokens", str(2 * case.needed()))
    with machine.served(folder, "stock", options, model=case.model, env=CHECKED) as served:
        said["stock"] = ask(served, case)
        served.flush_when_idle()
        said["stock again"] = ask(served, case, backwards=True)
        regrets = {name: judged(served, case, answers) for name, answers in said.items()}
        served.assert_clean()
    _keep(folder, said, regrets)
    figures = {"deterministic": bool(steady) or machine.toy, **judgement(case, said, regrets)}
    figures |= {"counters": counted, "times": {name: times(each) for name, each in said.items()}}
    if wrong := faults(case, figures):
        raise WrongError("; ".join(wrong), figures)
    return figures


def small(case: Case) -> tuple[str, ...]:
    """SGLang's options of a server that has too little memory for all streams at once."""
    return (*case.both, "--max-total-tokens", str(int(case.share * case.needed())))


def _asked(
    machine: Machine, case: Case, folder: Path, name: str, options: Sequence[str], said: Said
) -> dict[str, float]:
    """Ask a server, and again where the case says so; what its counters of ours say."""
    with (
        TemporaryDirectory(dir=machine.home) as storage,
        machine.served(
            *(folder, name, options),
            model=case.model,
            env={**CHECKED, STORAGE_VARIABLE: storage},
        ) as served,
    ):
        said[name] = ask(served, case)
        if case.again:
            served.flush_when_idle()  # refused until what is to be stored is stored
            said[f"{name} again"] = ask(served, case)
        seen = scrape(served.server.url)
        served.assert_clean()
    names = [name for name in seen.samples if name.endswith(("_total", "_sum"))]
    return {
        name: total for name in names if ":" not in name and (total := round(seen.total(name), 3))
    }


def ask(served: Served, case: Case, *, backwards: bool = False) -> list[Answer]:
    """Stream all answers, in the prompts' order.

    backwards: The last prompt is sent first.
    """
    prompts = case.prompts()
    sent = prompts[::-1] if backwards else prompts
    ready = threading.Barrier(1 if case.one_by_one else len(sent))
    with ThreadPoolExecutor(1 if case.one_by_one else len(sent)) as pool:
        answers = list(pool.map(lambda prompt: _stream(served, prompt, case, ready), sent))
    return answers[::-1] if backwards else answers


def _stream(served: Served, prompt: Tokens, case: Case, ready: threading.Barrier) -> Answer:
    sampling: dict[str, Any] = {"max_new_tokens": case.tokens, "temperature": 0, "ignore_eos": True}
    sampling["custom_params"] = {"tokenflow_rate": RATE}
    body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
    request = urllib.request.Request(
        f"{served.server.url}/generate",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    ready.wait()
    began, first, last = time.monotonic(), 0.0, b""
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                first, last = first or time.monotonic() - began, line
    said: dict[str, Any] = json.loads(last[6:])
    return Answer(said["output_ids"], first, time.monotonic() - began)


def judged(served: Served, case: Case, answers: Sequence[Answer]) -> list[list[float]]:
    """By how much log probability another token was better, for each token of each answer.

    Asked of stock SGLang, which reads the prompt and the whole answer at once.
    """
    regrets = []
    for prompt, answer in zip(case.prompts(), answers, strict=True):
        more = {"return_logprob": True, "logprob_start_len": len(prompt) - 1, "top_logprobs_num": 1}
        body = {"input_ids": [*prompt, *answer.tokens], **more}
        body["sampling_params"] = {"max_new_tokens": 1, "temperature": 0}
        told = served.post("/generate", body)
        assert told.status == 200, told
        about = told.body["meta_info"]
        count = len(answer.tokens)
        chosen, best = about["input_token_logprobs"][-count:], about["input_top_logprobs"][-count:]
        assert [token for _, token, _ in chosen] == answer.tokens, "log probabilities of others"
        regrets.append([top[0][0] - own[0] for own, top in zip(chosen, best, strict=True)])
    return regrets


def judgement(case: Case, said: Said, regrets: dict[str, list[list[float]]]) -> Figures:
    """How many answers are the same, and how wrong the most wrong token of each server is."""
    stock = [answer.tokens for answer in said["stock"]]
    worst = {name: max(map(max, each)) for name, each in regrets.items()}
    limit = max(TIE, 2 * worst["stock"], 2 * worst["stock again"])
    same, first = {}, {}
    for name, answers in said.items():
        if name == "stock":
            continue
        differ = [differs_at(a, b.tokens) for a, b in zip(stock, answers, strict=True)]
        same[name] = differ.count(None)
        first[name] = [at for at in differ if at is not None]
    return {
        "answers": len(stock),
        "tokens": sum(map(len, stock)),
        "different_tokens": len({token for tokens in stock for token in tokens}),
        "same_as_stock": same,
        "first_differences": first,
        "worst_regret": worst,
        "limit": limit,
        "wrong_tokens": {
            name: sum(regret > limit for each in all_ for regret in each)
            for name, all_ in regrets.items()
        },
        "short_answers": sum(
            len(answer.tokens) != case.tokens for each in said.values() for answer in each
        ),
    }


def differs_at(one: Tokens, other: Tokens) -> int | None:
    """The first token that differs; None: none does."""
    if one == other:
        return None
    shared = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in shared if a != b), min(len(one), len(other)))


def faults(case: Case, figures: Figures) -> list[str]:
    """Sentences on what should not be."""
    found = []
    wrong = figures["wrong_tokens"]
    for name, count in wrong.items():
        if name != CONTROL and count:
            found.append(f"{count} tokens of {name!r} are not what stock SGLang would say")
    if figures["short_answers"]:
        found.append(f"{figures['short_answers']} answers have another length than was asked for")
    for name in case.rose:
        if not figures["counters"].get(name):
            found.append(f"{name} is 0: nothing is shown")
    if case.control and not wrong[CONTROL]:
        found.append("copies that are broken on purpose went unnoticed: nothing is shown")
    if figures["different_tokens"] < 8:
        found.append(f"all answers are made of {figures['different_tokens']} tokens")
    return found


def times(answers: Sequence[Answer]) -> dict[str, float]:
    """Seconds: the first token, mean and at most; per token after it; until all have ended."""
    firsts = [answer.first_s for answer in answers]
    per_token = [
        (answer.whole_s - answer.first_s) / max(len(answer.tokens) - 1, 1) for answer in answers
    ]
    return {
        "first_mean_s": statistics.fmean(firsts),
        "first_max_s": max(firsts),
        "per_token_mean_s": statistics.fmean(per_token),
        "whole_max_s": max(answer.whole_s for answer in answers),
    }


def _keep(folder: Path, said: Said, regrets: dict[str, list[list[float]]]) -> None:
    """All tokens, and of each its regret."""
    rows = {
        name: [
            {"tokens": answer.tokens, "regrets": [round(one, 5) for one in regret]}
            for answer, regret in zip(answers, regrets[name], strict=True)
        ]
        for name, answers in said.items()
    }
    (folder / "answers.json").write_text(json.dumps(rows))
