"""Step times of a device, kept between two starts: to ask for them takes seconds each time.

A file in the user's cache folder has the times of one device and model. It is used only if all that
they were made from is still the same: the files of the package that has the measurements, our code
that asks, the model and the device. It is outside data, for anything may have happened to it: one
that is cut off, changed, too large, not ours or writable by others counts as none, and is written
anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.profiles import document
from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.tables import DecodeTable, PrefillTable

FORMAT = "tokenflow-step-times-1"
LARGEST = 1 << 23
"""Bytes of a file that is read: ten times what the tables of a device take."""
_FIELDS = {"format", "made_from", "sha256", "source", "decode", "prefill"}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Tables of step times in seconds, and in words where they come from."""

    decode: DecodeTable
    prefill: PrefillTable
    source: str


def folder() -> Path:
    """Of the user's caches, ours."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "tokenflow-sgl" / "step-times"


def kept(
    package: str, asked: Mapping[str, object], code: Path, make: Callable[[], StepTimes]
) -> StepTimes:
    """The step times of the cache, or made now and kept.

    Args:
        package: Distribution whose files the times are made from.
        asked: What they are of, as JSON.
        code: Folder of the modules that make them.
        make: Makes them.
    """
    made_from = _made_from(package, asked, code)
    if made_from is None:
        return make()
    path = folder() / f"{made_from[:32]}.json"
    found = _read(path, made_from)
    if found is None:
        found = make()
        _write(path, made_from, found)
    return found


def _made_from(package: str, asked: Mapping[str, object], code: Path) -> str | None:
    """SHA-256 of all that the times are made from; None: the package does not list its files."""
    try:
        # The hashes of all files of the installed package.
        record = importlib.metadata.distribution(package).read_text("RECORD")
        modules = [path.read_bytes() for path in sorted(code.glob("*.py"))]
    except (importlib.metadata.PackageNotFoundError, OSError, UnicodeError):
        return None
    if not record:
        return None
    found = hashlib.sha256(record.encode())
    for part in (*modules, json.dumps(asked, sort_keys=True).encode()):
        found.update(hashlib.sha256(part).digest())
    return found.hexdigest()


def _content(times: StepTimes) -> dict[str, Any]:
    # Not asdict: it would include the tables' private surfaces.
    tables = {
        name: {each.name: getattr(table, each.name) for each in fields(table) if each.init}
        for name, table in (("decode", times.decode), ("prefill", times.prefill))
    }
    return {"source": times.source, **tables}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path, made_from: str) -> StepTimes | None:
    try:
        value = json.loads(_own_bytes(path))
        if not isinstance(value, dict) or set(value) != _FIELDS:
            return None
        content = {name: value[name] for name in ("source", "decode", "prefill")}
        wanted = FORMAT, made_from, _digest(content)
        if (value["format"], value["made_from"], value["sha256"]) != wanted:
            return None
        read = document.Fields(content, str(path), set(content))
        decode = read.inner("decode", {"batch", "context", "seconds"})
        prefill = read.inner("prefill", {"tokens", "attended", "seconds"})
        return StepTimes(
            DecodeTable(
                decode.numbers("batch"), decode.numbers("context"), decode.table("seconds")
            ),
            PrefillTable(
                prefill.numbers("tokens"), prefill.numbers("attended"), prefill.table("seconds")
            ),
            read.text("source"),
        )
    except (OSError, ValueError, RecursionError, ProfileError):
        return None


def _own_bytes(path: Path) -> bytes:
    """A file's content, if it is a plain one that only this user can have written.

    Raises:
        OSError: It is not.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
        found = os.fstat(f.fileno())
        others = stat.S_IWGRP | stat.S_IWOTH
        if not stat.S_ISREG(found.st_mode) or found.st_mode & others:
            raise OSError(f"{path} is no plain file that only its owner can write")
        if found.st_uid != os.geteuid() or found.st_size > LARGEST:
            raise OSError(f"{path} is another user's, or too large")
        return f.read(LARGEST + 1)


def _write(path: Path, made_from: str, times: StepTimes) -> None:
    """Keep the times; where that fails, the next start makes them again."""
    content = _content(times)
    text = json.dumps(
        {"format": FORMAT, "made_from": made_from, "sha256": _digest(content), **content}
    )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".part", delete=False
        ) as part:
            part.write(text)
        os.replace(part.name, path)
    except OSError:
        return
