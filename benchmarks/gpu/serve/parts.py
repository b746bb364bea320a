"""All parts of the benchmark, in their order: what says most comes first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import attack
import link
import reference
import same_tokens
import workload
from journal import Figures, Journal, Part, UnfitError
from machine import Machine

from tokenflow_sgl.lab.profiles import MODELS
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, write_native

TOKENFLOW = ("--scheduler", "tokenflow", "--hicache-ratio", "4")
FORCED = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptEvery")
"""Half of the streams are paused every few steps, whatever the readers need."""
PAUSED = ("preemptions_total", "resume_loaded_tokens_total")
STORAGE = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file")
LAYERS = ("--disable-decode-cuda-graph", "--disable-prefill-cuda-graph")
BIG = "llama3-70b"
BIG_BYTES = 90 << 30
"""Memory that it needs in 8 bits, with some KV."""
PAPERS_TOKENS = 200_000
LARGE_BYTES = 60 << 30
"""Of a device's memory, from which on it holds the paper's KV of `h200-b`."""
ATTACK_MINUTES = 30.0
STEPS = {
    "kernels": "SGLang's kernels here are right",
    "same": "stock SGLang and tokenflow say the same",
    "workload": "one workload, beside what is simulated",
    "link": "copies and steps, and pauses beside steps",
    "restored": "prefixes from a storage, computed and loaded at once",
    "layers": "KV layer by layer",
    "further": "a 70B shape in 8 bits, speculation, the random attacker",
}
"""By name, what each one shows."""


def parts(machine: Machine, journal: Journal, against: str, minutes: float) -> list[Part]:
    """All parts.

    Args:
        machine: Where they run.
        journal: Of this call.
        against: The device whose shipped profile is compared with.
        minutes: Of the random attacker.
    """
    if machine.emulated is not None:
        return _workloads(machine, journal)
    known = dict(cases(machine))
    compared = {name: partial(same_tokens.compare, machine, case) for name, case in known.items()}
    measured = journal.folder / "link" / "copies" / "measured.csv"
    restored = partial(_script, machine, "restore.py", "restore.json")
    layered = partial(_script, machine, "layerwise.py", "layerwise.json")
    return [
        Part("kernels/reference", 2, partial(reference.check, machine)),
        Part("same/paused", 4, compared["paused"]),
        Part("same/forced", 6, compared["forced"]),
        *_workloads(machine, journal),
        Part("link/copies", 2, partial(link.copies, machine, against)),
        Part("link/steps", 3, partial(link.steps, machine, measured)),
        Part("link/pauses", 4, partial(link.pauses, machine, known["forced"])),
        Part("restored/served", 5, compared["restored"]),
        Part("restored/torch", 1.5, restored),
        Part("layers/served", 5, compared["layers"]),
        Part("layers/scheduled", 5, compared["layers, scheduled"]),
        Part("layers/torch", 1.5, layered),
        Part("further/fp8-70b", 8, partial(_big, machine)),
        Part("further/ngram", 6, compared["ngram"]),
        Part("further/attack", minutes + 4, partial(attack.attack, machine, minutes)),
    ]


def _workloads(machine: Machine, journal: Journal) -> list[Part]:
    made = []
    for name, load in _loads(machine, journal.folder).items():
        for contender in workload.CONTENDERS:
            run = partial(workload.measure, machine, journal, load, contender)
            made.append(Part(f"workload/{name}-{contender}", 5, run))
    return made


def _loads(machine: Machine, folder: Path) -> dict[str, workload.Workload]:
    """What the device's memory holds."""
    if machine.toy:
        trace = _toy_trace(folder)
        return {"6000": workload.Workload(trace, 6_000), "own": workload.Workload(trace, None)}
    if machine.memory() < LARGE_BYTES:
        return {"own": workload.Workload("4090-a", None)}
    large = {f"{PAPERS_TOKENS}": workload.Workload("h200-b", PAPERS_TOKENS)}
    return {**large, "own": workload.Workload("h200-b", None)}


def _toy_trace(folder: Path) -> str:
    """Eight short answers, all asked for at once."""
    request = TraceRequest(0.0, prompt_tokens=64, output_tokens=48, rate=20.0)
    path = folder / "toy.jsonl"
    write_native(path, Trace("toy", (request,) * 8, Accounting(8, 8)))
    return str(path)


def paused_case(machine: Machine) -> same_tokens.Case:
    """Streams that are paused, for want of memory."""
    if machine.toy:
        small = {"streams": 8, "lengths": (40, 120), "tokens": 64}
        return same_tokens.Case(TOKENFLOW, PAUSED, **small)  # type: ignore[arg-type]
    return same_tokens.Case(TOKENFLOW, PAUSED)


def cases(machine: Machine) -> list[tuple[str, same_tokens.Case]]:
    """What is compared with stock SGLang, by name."""
    long = {"streams": 3, "lengths": (300, 400) if machine.toy else (16_000, 20_000), "tokens": 32}
    page = ("--page-size", "16" if machine.toy else "64")
    layers = (*page, *(() if machine.toy else LAYERS))
    layered = {"one_by_one": True, "share": 1.25}
    drafts = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
    stored = (*STORAGE, "--hicache-ratio", "2")
    paused = paused_case(machine)
    sizes = {"streams": paused.streams, "lengths": paused.lengths, "tokens": paused.tokens}
    case: Callable[..., same_tokens.Case] = same_tokens.Case
    return [
        ("paused", paused),
        (
            "restored",
            case(
                (*stored, "--tokenflow-restore", "auto"),
                ("restorations_total", "restored_tokens_total"),
                both=page,
                share=4.0,
                one_by_one=True,
                again=True,
                beside=(
                    ("loading", (*stored, "--hicache-storage-prefetch-policy", "wait_complete")),
                ),
                **long,
            ),
        ),
        (
            "layers",
            case(
                ("--tokenflow-layerwise", "auto"),
                ("layers_staged_tokens_total",),
                both=layers,
                **layered,
                **{**long, "tokens": 64},
            ),
        ),
        (
            "layers, scheduled",
            case(
                ("--tokenflow-layerwise", "auto", "--scheduler", "tokenflow"),
                ("preemptions_total", "layers_moved_tokens_total"),
                both=layers,
                **sizes,
            ),
        ),
        ("forced", case(FORCED, PAUSED, control=True, **sizes)),
        ("ngram", case((*FORCED, *drafts), PAUSED, **sizes)),
    ]


def _script(machine: Machine, name: str, output: str, folder: Path) -> Figures:
    """One of the scripts that need torch alone; what it printed is what it says."""
    said = link.script(machine, name, "--output", folder / output)
    return {"said": said.splitlines()}


def _big(machine: Machine, folder: Path) -> Figures:
    """A 70B shape with weights in 8 bits, paused as the small one."""
    if machine.toy:
        raise UnfitError("weights in 8 bits have kernels on GPUs only")
    if machine.memory() < BIG_BYTES:
        raise UnfitError(f"{BIG} in 8 bits needs a GPU with {BIG_BYTES >> 30} GiB")
    model = machine.model_options(MODELS[BIG], fp8=True)
    case = same_tokens.Case(TOKENFLOW, PAUSED, streams=12, tokens=200, model=model)
    return same_tokens.compare(machine, case, folder)
