"""What becomes of a launch line on the machine that it is meant for, asked on any machine.

For `tokenflow doctor --elsewhere` and `--lines`. Options go through SGLang's parser and the checks
of our own start. Its device, the number of accelerators and the model need not be here. What only
they can show is not judged: a model that is elsewhere is taken to be of the kind that the options
speak of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenflow_sgl.engine.config import config_of, off_reason
from tokenflow_sgl.engine.launching import (
    NO_MODEL,
    RefusedError,
    launch_step,
    model_refusal,
    parsed,
)
from tokenflow_sgl.engine.layerwise_settings import layerwise_of
from tokenflow_sgl.engine.light_sglang import whole
from tokenflow_sgl.engine.model_kinds import refused_model
from tokenflow_sgl.engine.refusal import Refusal
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.unsupported import refused_options


@dataclass(frozen=True, slots=True)
class LaunchVerdict:
    """What becomes of one launch line with `--scheduler tokenflow`.

    Attributes:
        refusals: Everything that this package refuses of it, in the order of its checks.
        sglang: Why SGLang's own parser does not take it; None if it does.
        unseen: The model that was not looked at; None if it was, or need not be.
        off: Why the scheduler would stay off although it was asked for; None: it would be on.
    """

    refusals: tuple[Refusal, ...] = ()
    sglang: str | None = None
    unseen: str | None = None
    off: str | None = None

    @property
    def accepted(self) -> bool:
        """Whether nothing that could be judged stands in the way."""
        return not self.refusals and self.sglang is None


def judge(options: Sequence[str]) -> LaunchVerdict:
    """The verdict on the options of a launch; `--scheduler tokenflow` is added where it is missing.

    Changes this process (SGLang's hooks, logging) and downloads nothing.
    """
    asked = [*options]
    if not any(each.partition("=")[0] == "--scheduler" for each in asked):
        asked += ["--scheduler", "tokenflow"]
    try:
        record = parsed(asked)
        found: list[Refusal] = []
    except RefusedError as error:
        if not error.ours:
            return LaunchVerdict(sglang=str(error))
        try:
            record = parsed([*asked, "--scheduler", "default"])
        except RefusedError:
            return LaunchVerdict((_own(error),))
        layers = layerwise_of(record) is not None
        found = [*refused_options(record, layers=layers)] or [_own(error)]
    else:
        if (off := off_reason(record)) is not None:
            return LaunchVerdict(off=off)
        if config_of(record) is None:
            return LaunchVerdict(sglang="--scheduler default starts SGLang's own scheduler")
    refusal, unseen = _of_model(record)
    return LaunchVerdict(tuple([*found, refusal] if refusal else found), None, unseen)


@cache
def _plain() -> Any:
    """A record in which nothing was said."""
    return parsed(["--model-path", NO_MODEL])


def _own(error: RefusedError) -> Refusal:
    """A value of ours that cannot be used, which ends a start as a refusal does."""
    return Refusal("--tokenflow-*", f"{str(error).removeprefix('tokenflow refuses: ')}.")


def _of_model(record: ServerArgs) -> tuple[Refusal | None, str | None]:
    """What is refused of the model, and its name if it was not looked at."""
    path: str = record.model_path
    if Path(path, "config.json").is_file():
        whole()
        try:
            return launch_step("the model cannot be read", lambda: model_refusal(record)), None
        except RefusedError as error:
            return None, f"{path} ({error})"

    # Options that only an embedding model has a use for say what it is.
    embeds = record.is_embedding != _plain().is_embedding
    return refused_model(is_generation=not embeds), path
