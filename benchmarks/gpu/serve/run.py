"""SGLang with tokenflow on a GPU: does it start, say the same, and do what was simulated?

    python benchmarks/gpu/serve/run.py --out DIR                     # all parts: about two hours
    python benchmarks/gpu/serve/run.py --out DIR --only same         # one step
    python benchmarks/gpu/serve/run.py --out DIR --minutes 9         # what fits; call it again
    python benchmarks/gpu/serve/run.py --out DIR --toy               # on a CPU, tiny: shows it runs
    python benchmarks/gpu/serve/run.py --out DIR --emulated p.json   # the workloads, emulated

For a machine with an NVIDIA GPU on which SGLang and this package are installed, and with this
repository. Nothing is downloaded: unless --model names one with weights, weights are made up. Each
part prints and keeps what it found at once, in DIR; the next call goes on behind what is done. The
page DIR/page.md has each real figure beside the simulated one.

Exit codes: 0, all that applies here is done and right; 1, something failed or is wrong; 2, an
option; 3, parts are still to do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "emulator" / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import workload
from journal import Entry, Journal, exit_code, finite, step_of
from link import REFIT
from machine import MODULE, Machine
from packing import pack
from page import Simulate, left, page
from parts import ATTACK_MINUTES, STEPS, parts

from porting.forks import warm_forks
from tokenflow_sgl.lab.profiles import DEVICES, DeviceProfile, ProfileError, load_profile

PAGE = "page.md"
NAME = "serve"
"""Of the packed files."""
PIECE = 15 << 20
"""Bytes of a packed file: what comes back from a bare machine has 16 MiB at most."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for all results")
    parser.add_argument("--only", metavar="STEP", help=f"of {', '.join(STEPS)}; or STEP/PART")
    parser.add_argument("--minutes", type=float, help="for this call; what does not fit is left")
    parser.add_argument("--model", default="llama3-8b", help="a shape, or a model with weights")
    parser.add_argument("--profile", type=Path, help="to compare with, instead of the shipped one")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="a run to compare with, too")
    parser.add_argument(
        "--pack", type=Path, metavar="FOLDER", help="pack DIR there after each part"
    )
    parser.add_argument("--attack-minutes", type=float, default=ATTACK_MINUTES)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--toy", action="store_true", help="toy models on a CPU: a dry run")
    where.add_argument("--emulated", type=Path, metavar="PROFILE", help="an emulated device")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: servers are stopped
    out = args.out.absolute()
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory()))
        machine = Machine(args.toy, args.model, home, args.emulated)
        if machine.toy:  # else a dry run would import SGLang for most of its time
            warm = stack.enter_context(warm_forks(home))
            machine = replace(machine, launcher=(*warm, MODULE))
        elif machine.emulated is None and not machine.gpus():
            parser.error("nvidia-smi finds no GPU; --toy runs at toy size on the CPU")
        done = run(machine, out, args)
    if not done:
        parser.error(f"--only {args.only} is no part here; steps are {', '.join(STEPS)}")
    print(f"\n{(out / PAGE).read_text()}")
    for sentence in left(done):
        print(sentence)
    return exit_code(done)


def run(machine: Machine, out: Path, args: argparse.Namespace) -> list[Entry]:
    """Do the chosen parts, one after the other; the page is made again behind each."""
    journal = Journal(out, args.minutes)
    (out / "machine.json").write_text(json.dumps(machine.described(), indent=1) + "\n")
    device = device_of(machine.device())
    shipped = profile_of(args.profile, device)
    done: list[Entry] = []
    for part in parts(machine, journal, device or "h200", args.attack_minutes):
        if args.only not in (None, step_of(part.name), part.name):
            continue
        print(f"[{part.name}] about {part.minutes:g} minutes", flush=True)
        done.append(journal.do(part))
        say(done[-1])
        try:
            write_page(machine, journal, shipped, args.beside)
        except Exception:  # the figures are kept, and the next part may be the last that has time
            traceback.print_exc()
        if args.pack is not None:
            pack(out, args.pack, NAME, lambda number: PIECE, effort=1)
            shutil.copy(out / PAGE, args.pack)
    return done


def say(entry: Entry) -> None:
    """Print what has become of a part."""
    figures = {name: value for name, value in entry.figures.items() if _is_short(value)}
    why = f": {entry.why}" if entry.why else ""
    print(f"[{entry.name}] {entry.state.value} after {entry.seconds:.0f} s{why}", flush=True)
    print(f"    {json.dumps(figures)}", flush=True)


def _is_short(value: object) -> bool:
    return len(json.dumps(value, default=str)) < 1000


def write_page(
    machine: Machine, journal: Journal, shipped: DeviceProfile | None, other: Path | None
) -> None:
    """Make DIR/page.md again from what is there.

    Args:
        machine: Where it ran.
        journal: What came.
        shipped: The device's profile; None: there is none.
        other: Folder of another run, emulated for example.
    """
    beside: dict[str, Simulate] = {}
    kept = journal.folder / "simulated.json"
    if shipped is not None:
        beside["simulated"] = lambda found: simulated(found, shipped, kept)
    refit = journal.folder / "link" / "steps" / REFIT
    if refit.exists():
        own = DeviceProfile.load(refit)
        beside["with this GPU's steps"] = lambda found: simulated(found, own, kept)
    if other is not None:
        runs = [entry.figures for entry in Journal(other).entries() if "felt" in entry.figures]
        beside[other.name] = lambda found: _alike(found, runs)
    text = page(machine.described(), journal.entries(), STEPS, beside)
    (journal.folder / PAGE).write_text(text)


def simulated(found: Mapping[str, Any], profile: DeviceProfile, kept: Path) -> Mapping[str, float]:
    """The simulator's figures of a server; none where a run or a server cannot be simulated.

    kept: File with those of earlier calls: the page is made after each part.
    """
    names = ("workload", "contender", "warm_up", "server")
    key = json.dumps([profile.source, profile.device, *(found[name] for name in names)])
    known: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    if key not in known:
        try:
            known[key] = finite(workload.simulated(found, profile))
        except Exception as error:
            print(f"    not simulated: {error}", flush=True)
            return {}
        kept.write_text(json.dumps(known))
    return known[key]


def _alike(found: Mapping[str, Any], runs: list[Mapping[str, Any]]) -> Mapping[str, float]:
    keys = ("workload", "contender", "warm_up")
    for run in runs:
        if all(run[key] == found[key] for key in keys):
            figures: Mapping[str, float] = run["felt"]
            return figures
    return {}


def profile_of(given: Path | None, device: str | None) -> DeviceProfile | None:
    """The profile to compare with; None: there is none, which is said."""
    if given is not None:
        return DeviceProfile.load(given)
    if device is None:
        return None
    packed = [Path(folder) / "profiles" / f"{device}.json" for folder in sys.path]
    for path in packed:
        if path.exists():
            return DeviceProfile.load(path)
    try:
        return load_profile(device, "llama3-8b")
    except ProfileError as error:
        print(f"    no profile to compare with: {error}", flush=True)
        return None


def device_of(name: str) -> str | None:
    """The device of `tokenflow profile list` that a GPU's name means; None: none of them.

    name: As nvidia-smi has it.
    """
    plain = "".join(char for char in name.lower() if char.isalnum())
    found = [device for device in DEVICES if device in plain]
    return max(found, key=len, default=None)


if __name__ == "__main__":
    sys.exit(main())
