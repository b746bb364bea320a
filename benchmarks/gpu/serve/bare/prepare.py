"""Packs what a bare GPU machine needs to serve: SGLang and what its Python lacks for it.

    python benchmarks/gpu/serve/bare/prepare.py             # with a network; .gpu/, in some minutes

For a machine with torch 2.11 for CUDA 13 and Python 3.12, without SGLang and without a network. The
versions are those of requirements/dev.txt, of the packages that names.txt lists. SGLang's compiled
kernels are taken from the last sglang-kernel for torch 2.11. The parts and the working tree, which
travels with them, have room in a copy of --limit MiB; each further part needs a copy of its own,
and lies in a folder of its own for it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from packing import SUM, pack

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
NAME = "site"
KERNELS = "sglang-kernel"
PYTHON_FILES, BINARIES = "0.4.10", "0.4.6"
"""Of sglang-kernel: the one that SGLang pins, and the last one compiled for torch 2.11."""
BINARY = "sgl_kernel/sm90/common_ops.abi3.so"
UNUSED = ("bin", "sglang/multimodal_gen")
"""Of what is installed: large, and imported by no server of this benchmark."""
GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17)
"""Of the wheels, as 2.N: pip takes only the versions that it is told."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(".gpu"), metavar="FOLDER")
    parser.add_argument("--cache", type=Path, default=Path("/tmp/gpu-bare"), metavar="FOLDER")
    parser.add_argument("--limit", type=int, default=60, metavar="MIB", help="of a copy")
    parser.add_argument("--device", default="h200", help="whose shipped profile is packed, too")
    args = parser.parse_args()
    site = args.cache / "site"
    shutil.rmtree(site, ignore_errors=True)
    print("1. wheels", flush=True)
    wheels = download(args.cache)
    print("2. the site", flush=True)
    command = ["install", "-q", "--no-index", "--no-compile", "--no-warn-conflicts"]
    pip(*command, *target(), "--target", site, *sorted(wheels.glob("*.whl")))
    for unused in UNUSED:
        shutil.rmtree(site / unused, ignore_errors=True)
    kernels(args.cache, site)
    for project in (ROOT, ROOT / "emulator"):
        declare(project, site)
    save_profile(args.device, site)
    print("3. the parts", flush=True)
    shutil.rmtree(args.out, ignore_errors=True)
    tree = travelling()
    room = (args.limit << 20) - tree
    parts = pack(site, args.out, NAME, lambda number: room)
    print(f"working tree {tree >> 20} MiB, room for a part {room >> 20} MiB, parts: {len(parts)}")
    for number, part in enumerate(parts if len(parts) > 1 else ()):
        folder = args.out / f"call-{number}"
        folder.mkdir()
        part.rename(folder / part.name)
        shutil.copy(args.out / f"{NAME}.{SUM}", folder)
    print(f"{args.out} is packed; what to do with it says {HERE.parent / 'README.md'}")


def download(cache: Path) -> Path:
    """The wheels of names.txt and of both kernels; those that are there are kept."""
    names = (HERE / "names.txt").read_text().split()
    lock = (ROOT / "requirements" / "dev.txt").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.M))
    fetch(cache / "wheels", *(f"{name}=={pinned[name]}" for name in names))
    for version in (PYTHON_FILES, BINARIES):
        fetch(cache / "kernels", f"{KERNELS}=={version}")
    return cache / "wheels"


def fetch(folder: Path, *wanted: str) -> None:
    """Download wheels for the bare machine."""
    folder.mkdir(parents=True, exist_ok=True)
    pip("download", "-q", *target(), "-d", folder, *wanted)


def pip(*words: str | Path) -> None:
    """Run this Python's pip; what it says is shown, and an error ends the program."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command)
    if done.returncode:
        raise SystemExit(f"pip ended with {done.returncode}")


def target() -> tuple[str, ...]:
    """Options of pip for Python 3.12 on that machine."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += ["manylinux2014_x86_64", "manylinux1_x86_64"]
    own = ("--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp")
    return (*own, *(word for each in platforms for word in ("--platform", each)))


def kernels(cache: Path, site: Path) -> None:
    """Python files of one release, compiled kernels for Hopper of the other one."""
    for version in (PYTHON_FILES, BINARIES):
        (wheel,) = (cache / "kernels").glob(f"sglang_kernel-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                wanted = name == BINARY if version == BINARIES else not name.endswith(".so")
                if wanted:
                    archive.extract(name, site)


def declare(project: Path, site: Path) -> None:
    """A project's metadata: its code comes with the working tree, SGLang finds plugins by this."""
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = about["name"], about["version"]
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = {"console_scripts": about.get("scripts", {}), **about["entry-points"]}
    lines = [f"[{group}]\n" + _lines(points) for group, points in groups.items()]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def _lines(points: dict[str, str]) -> str:
    return "".join(f"{name} = {target}\n" for name, target in points.items())


def save_profile(device: str, site: Path) -> None:
    """The shipped profile: its step times come from a package that the bare machine lacks."""
    try:
        from tokenflow_sgl.lab.profiles import load_profile

        profile = load_profile(device, "llama3-8b")
    except Exception as error:
        print(f"no profile of {device} is packed ({error}): the page there will have no figures")
        print("beside the real ones; make it again here, where the profile is")
        return
    (site / "profiles").mkdir()
    profile.save(site / "profiles" / f"{device}.json")


def travelling() -> int:
    """Bytes of the working tree."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    names = subprocess.run([*listed, "--exclude-standard"], capture_output=True, check=True).stdout
    paths = [ROOT / os.fsdecode(name) for name in names.split(b"\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    main()
