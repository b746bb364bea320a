"""A folder as one compressed archive, cut into parts of a size that a transfer allows.

`prepare.py` packs what a bare machine lacks, `assemble.py` unpacks it there, and `run.py` packs
what came out. Only Python's own library: on the bare machine nothing else is there yet.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

SUM = "sum.sha256"
"""File beside the parts that has the archive's checksum and the number of parts."""


class MissingError(Exception):
    """Parts are missing, or are not those of one archive."""


def pack(
    folder: Path, out: Path, name: str, room: Callable[[int], int], effort: int = 6
) -> list[Path]:
    """Write the folder's files as `NAME.00`, `NAME.01`, ... and their checksum.

    What was packed there before by that name is replaced. Bytecode is left out.

    Args:
        folder: What is packed; its files come to lie at the archive's root.
        out: Where the parts go; made if missing.
        name: Of the parts.
        room: Bytes that the part of a number, from 0 on, may have.
        effort: Of xz, 0 to 9.

    Returns:
        The parts, in order.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, ".", filter=_no_bytecode)
    content = lzma.compress(packed.getvalue(), preset=effort)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{name}.[0-9][0-9]"):
        old.unlink()
    parts: list[Path] = []
    begin = 0
    while begin < len(content):
        parts.append(out / f"{name}.{len(parts):02d}")
        end = begin + room(len(parts) - 1)
        parts[-1].write_bytes(content[begin:end])
        begin = end
    said = f"{hashlib.sha256(content).hexdigest()} {len(parts)}\n"
    (out / f"{name}.{SUM}").write_text(said)
    return parts


def unpack(source: Path, folder: Path, name: str) -> None:
    """Write what `pack` packed into a folder, which is made anew.

    Raises:
        MissingError: Not all parts are there, or one is of another archive.
    """
    sums = source / f"{name}.{SUM}"
    if not sums.exists():
        raise MissingError(f"{source} has no {sums.name}")
    wanted, count = sums.read_text().split()
    parts = sorted(source.glob(f"{name}.[0-9][0-9]"))
    if len(parts) < int(count):
        there = ", ".join(part.name for part in parts) or "none"
        raise MissingError(f"{count} parts are needed; there: {there}")
    content = b"".join(part.read_bytes() for part in parts)
    if hashlib.sha256(content).hexdigest() != wanted:
        raise MissingError(f"the parts in {source} are not those of one archive")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as archive:
        archive.extractall(folder, filter="data")


def _no_bytecode(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name == "__pycache__" else entry
