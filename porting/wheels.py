"""Fetches releases of SGLang as wheels and unpacks their Python source; installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path


class FetchError(Exception):
    """A release could not be fetched or unpacked; the message says why."""


def cache_folder() -> Path:
    """Where wheels are kept between runs: below the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tokenflow-sgl" / "wheels"


def package_of(version: str, cache: Path) -> Path:
    """The folder of package `sglang` of one release, fetched when it is not in the cache.

    Raises:
        FetchError: There is no such release, no network, or no space.
    """
    root = cache / f"sglang-{version}"
    if not root.is_dir():
        try:
            _unpack(_wheel(version, cache), root)
        except (OSError, zipfile.BadZipFile) as error:
            raise FetchError(f"SGLang {version} could not be unpacked: {error}") from error
    package = root / "sglang"
    if not package.is_dir():
        raise FetchError(f"the wheel of SGLang {version} has no package sglang")
    return package


def _wheel(version: str, cache: Path) -> Path:
    """The wheel of one release, downloaded if it is not there."""
    cache.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(cache.glob(f"sglang-{version}-*.whl"))):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        chosen = ["--no-deps", "--only-binary", ":all:", "--dest", str(cache)]
        done = subprocess.run(
            [*pip, *chosen, f"sglang=={version}"], capture_output=True, text=True, check=False
        )
        found = sorted(cache.glob(f"sglang-{version}-*.whl"))
        if done.returncode or not found:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise FetchError(f"SGLang {version} could not be fetched: {(said or ['no wheel'])[-1]}")
    return found[-1]


def _unpack(wheel: Path, root: Path) -> None:
    """Python files of a wheel; the folder is there only when all of them are."""
    unfinished = root.with_name(f"{root.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(unfinished, members)
        unfinished.rename(root)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
