"""What `sglang.launch_server` with some options would refuse, found without launching it.

For `tokenflow doctor`. The options go the way that a launch takes them: SGLang's plugins, its
parser, our checks, the device, SGLang's resolution of the record, the model's kind. No weights are
loaded, nothing is downloaded, no port is opened.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenflow_sgl.engine.config import NO_PLANNER, config_of, off_reason, restoring_planner
from tokenflow_sgl.engine.consequences import UNREAD, consequences, kv_size
from tokenflow_sgl.engine.host_memory import HostRoom, host_room
from tokenflow_sgl.engine.judging import judged
from tokenflow_sgl.engine.light_sglang import light, whole
from tokenflow_sgl.engine.model_kinds import kind_of_model, refused_model
from tokenflow_sgl.engine.refusal import Refusal, UnsupportedError
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.unsupported import check_prefill

NOT_LOOKED_AT = "not looked at"
NO_MODEL = "dummy"
"""SGLang's own word for a model path that is none: the record is checked as far as that goes."""
ELSEWHERE = "not on this machine, so what depends on it was not checked"
REFUSES = "SGLang refuses these options"
LONGEST_REASON = 400
_OURS = "tokenflow: "
"""How our refusals begin when SGLang's start is ended by them."""


@dataclass(frozen=True, slots=True)
class ExpectedLaunch:
    """How far a launch would come.

    Attributes:
        scheduler: Whether the options switch our scheduler on.
        device: What SGLang would run on; None where it finds nothing or was not asked.
        model: What was looked at of the model.
        refusal: Why it would not start, without a full stop; None if nothing of this stands in
            the way.
        no_device: Whether that is the device.
        elsewhere: Whether the model would have to be downloaded, and was not looked at.
        off: Why our scheduler would stay off although the options ask for it; None: it would not.
        storage: HiCache's, as the options name it; None: there is none.
        planner: Of `--tokenflow-restore`; None: it is off.
        restores: Whether the model's KV can be fetched page by page, as restorations do it; None:
            it was not looked at.
        effects: What our scheduler changes of the server, as of `consequences`.
    """

    scheduler: bool = False
    device: str | None = None
    model: str = NOT_LOOKED_AT
    refusal: str | None = None
    no_device: bool = False
    elsewhere: bool = False
    off: str | None = None
    storage: str | None = None
    planner: str | None = None
    restores: bool | None = None
    effects: tuple[tuple[str, str], ...] = ()


class RefusedError(Exception):
    """A step of the launch failed; the message says which and why.

    Attributes:
        ours: Whether this package refused, and not SGLang.
    """

    def __init__(self, message: str, *, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours


def try_launch(options: Sequence[str]) -> ExpectedLaunch:
    """Walk through a launch with these options, up to where it would begin to load the model.

    Changes this process (SGLang's hooks, the environment, logging): for one that ends soon.
    """
    found = ExpectedLaunch()
    try:
        record = parsed(options)
        planner = restoring_planner(record)
        found = ExpectedLaunch(
            scheduler=config_of(record) is not None,
            off=off_reason(record),
            storage=record.hicache_storage_backend if record.enable_hierarchical_cache else None,
            planner=None if planner == NO_PLANNER else planner,
            effects=effects(options, host_room()),
        )
        try:
            found = replace(found, device=_device(record))
        except RefusedError as error:
            return replace(found, refusal=str(error), no_device=True)
        model = record.model_path
        if not _is_here(record):
            return replace(found, model=f"{model}: {ELSEWHERE}", elsewhere=True)
        found = replace(found, model=model)
        if model != NO_MODEL:
            whole()  # its patches of transformers are for reading models
        launch_step(REFUSES, record.resolve_once)
        # None: a platform may set it where the server starts.
        if found.planner is not None and record.chunked_prefill_size is not None:
            launch_step(REFUSES, lambda: check_prefill(record.chunked_prefill_size))
        if model != NO_MODEL:
            launch_step(REFUSES, record.check_server_args)
            restores = launch_step(
                "the model cannot be served", lambda: _check_model(record, found.scheduler)
            )
            read = f"{model}: its configuration was read, its weights were not"
            seen = effects(options, host_room(), record, restores=restores)
            found = replace(found, model=read, restores=restores, effects=seen)
    except RefusedError as error:
        return replace(found, refusal=str(error))
    return found


def parsed(options: Sequence[str]) -> Any:
    """The record that a launch with these options begins with; nothing of a server is put in place.

    Raises:
        RefusedError: SGLang's parser, or this package, refuses them.
    """
    light()
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()  # once: SGLang remembers
    with judged():
        return launch_step(REFUSES, lambda: prepare_server_args([*options]))


def effects(
    options: Sequence[str], room: HostRoom, resolved: Any = None, *, restores: bool = True
) -> tuple[tuple[str, str], ...]:
    """What our scheduler changes of a server with these options; none where it is off.

    Args:
        options: That can be parsed.
        room: Of the machine that it will run on.
        resolved: The record of these options, where the model is here; None: it is not.
        restores: As of `ExpectedLaunch`.
    """
    record = parsed(options)
    config = config_of(record)
    if config is None:
        return ()
    plain = parsed([*options, "--scheduler", "default"])
    kv = UNREAD
    if resolved is not None:
        kv = kv_size(resolved, _config_of_model(resolved), whole=restores)
    return tuple(consequences(record, plain, config, kv, room))


def launch_step(what: str, action: Callable[[], Any]) -> Any:
    """Do one step of a launch; SGLang fails by exceptions of all kinds and by ending the process.

    Raises:
        RefusedError: It did.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return action()
    except SystemExit as error:
        # argparse ends with a line on stderr, we with our sentence as the exit code.
        lines = said.getvalue().strip().splitlines()
        reason = error.code if isinstance(error.code, str) else lines[-1] if lines else "no reason"
        reason = reason.partition(": error: ")[2] or reason
    except UnsupportedError as error:
        reason = f"{_OURS}{error}"
    except Exception as error:
        text = str(error).strip()
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    reason = " ".join(reason.split())[:LONGEST_REASON].rstrip(".")
    if reason.startswith(_OURS):
        raise RefusedError(f"tokenflow refuses: {reason.removeprefix(_OURS)}", ours=True)
    raise RefusedError(f"{what}: {reason}")


def _device(record: ServerArgs) -> str:
    """The device that SGLang would run on, found as it finds it.

    Raises:
        RefusedError: There is none, or not the one that the options name.
    """
    from sglang.srt.utils.common import get_device

    named: str | None = record.device
    if named == "cpu":
        return "cpu, by --device"
    found: str = launch_step("SGLang finds no device here", get_device)
    if named is not None and named.partition(":")[0] != found.partition(":")[0]:
        raise RefusedError(f"--device {named} is not here; SGLang finds {found}")
    return found


def _is_here(record: ServerArgs) -> bool:
    """Whether the model can be looked at without a download.

    Raises:
        RefusedError: Its path is one of this machine, and nothing is there.
    """
    path: str = record.model_path
    if path == NO_MODEL or Path(path).exists():
        return True
    if path.startswith(("/", ".", "~")):
        raise RefusedError(f"--model-path {path} does not exist")
    return _in_hub_cache(path, record.revision)


def _in_hub_cache(name: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return False
    return isinstance(found, (str, os.PathLike))


def model_refusal(record: ServerArgs) -> Refusal | None:
    """Why the scheduler will not serve the model when it has loaded it; None: it will."""
    return refused_model(**_kind_of_model(record))


def _check_model(record: ServerArgs, scheduler: bool) -> bool:
    """Refuse a model that the scheduler would refuse once it has loaded it.

    Returns:
        Whether all of its KV is of whole prefixes: no windows, no states.
    """
    refusal = model_refusal(record)
    if scheduler and refusal is not None:
        raise UnsupportedError(refusal.sentence)
    config = _config_of_model(record)
    return not config.is_hybrid_swa and not _has_states(config)


def _kind_of_model(record: ServerArgs) -> dict[str, bool]:
    """What `refused_model` asks of it."""
    return kind_of_model(_config_of_model(record))


def _has_states(config: Any) -> bool:
    from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state

    return bool(uses_ssm_state(config))


def _config_of_model(record: ServerArgs) -> Any:
    from sglang.srt.arg_groups.model_override_base import model_config_of

    return model_config_of(record)
