"""Where the servers run, what they serve, and how they are started: GPU, or CPU for a dry run."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from llama import TOY as TOY_SHAPE
from servers.client import Served

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.profiles import MODELS, DeviceProfile, Model
from tokenflow_sgl_emulator.tokenizer import BOS_ID, EOS_ID, make_tokenizer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODULE = "sglang.launch_server"
PATHS = (
    *(ROOT, ROOT / "emulator" / "src", HERE / "plugin"),
    ROOT / "tests" / "helpers" / "server_side",  # policies by name
)
"""What servers import from; a bare machine has them here only."""
CHECKED = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
TOLD = ("sglang", "sglang-kernel", "torch", "triton", "transformers", "tokenflow-sgl")
LOG_BYTES = 4_000_000
"""Of a server's log that are kept, its end."""
STARTUP_S = 400.0
CONTEXT = 131072
LEAST_VOCABULARY = 10_240
"""Of a made-up model: SGLang's `one_batch` draws its prompts from 10,000 tokens."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with an NVIDIA GPU, or one that stands for it.

    Attributes:
        toy: No GPU: toy models on the CPU platform, which shows that all runs.
        model: What is served: a name of `MODELS`, or a model's folder or name with weights.
        emulated: No GPU: workloads on a device with the times of this profile, in virtual time.
        home: For models and storages, which no result needs.
        launcher: What starts SGLang's server.
    """

    toy: bool
    model: str
    home: Path
    emulated: Path | None = None
    launcher: tuple[str, ...] = (sys.executable, "-m", MODULE)

    @property
    def shape(self) -> Model | None:
        """The shape that is served, with made-up weights; None: a model with weights."""
        return TOY_SHAPE if self.toy else MODELS.get(self.model)

    def options(self) -> tuple[str, ...]:
        """SGLang's options of every server here."""
        common = ("--random-seed", "1", "--sleep-on-idle", "--enable-metrics")
        if self.toy or self.emulated or find_spec("flashinfer"):
            return common
        return (*common, "--attention-backend", "triton", "--sampling-backend", "pytorch")

    def variables(self) -> dict[str, str]:
        """Environment of every server here."""
        given = {"PYTHONPATH": paths_for_python()}
        if self.shape is not None:
            given["HF_HUB_OFFLINE"] = "1"
        if not self.toy and self.emulated is None:
            given["SGLANG_ENABLE_METRICS_DEVICE_TIMER"] = "1"
        if self.toy:
            # Else SGLang compiles how it samples with a seed, in every server.
            given |= {"SGLANG_PLATFORM": "tokenflow_emu", "TORCHDYNAMO_DISABLE": "1"}
            given |= {"CUDA_VISIBLE_DEVICES": ""}
        return given

    def model_options(self, shape: Model | None, *, fp8: bool = False) -> tuple[str, ...]:
        """How SGLang is told what to serve.

        Args:
            shape: With made-up weights; None: `model`, which has weights.
            fp8: Weights in 8 bits.
        """
        if shape is None:
            return ("--model-path", self.model)
        folder = self.home / (shape.name + ("-fp8" if fp8 else ""))
        return ("--model-path", str(make_model(folder, shape, fp8=fp8)), "--load-format", "dummy")

    @contextmanager
    def served(
        self,
        folder: Path,
        name: str,
        options: Sequence[str],
        *,
        model: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Iterator[Served]:
        """A healthy server, for as long as the block lasts; its log is kept in `folder`.

        Args:
            folder: Of the part.
            name: Of the server, for its log.
            options: SGLang's, beside those of every server.
            model: What it serves, as options; None: this machine's model.
            env: More variables of its environment.

        Raises:
            ServerError: It did not start.
        """
        launcher = self.launcher
        if self.emulated is not None:
            emulator = (sys.executable, "-m", "tokenflow_sgl_emulator.serve", "--virtual-time")
            launcher = (*emulator, "--profile", str(self.emulated), "--")
            model = ()
        elif model is None:
            model = self.model_options(self.shape)
        given = (*model, *self.options(), *options)
        print(f"    {name}: {shlex.join(given)}", flush=True)
        server = SglangServer(
            None,
            given,
            log_path=folder / f"{name}.log",
            env={**self.variables(), **(env or {})},
            launcher=launcher,
            startup_timeout_s=STARTUP_S,
        )
        try:
            with server:
                yield Served(server)
        finally:
            shorten(server.log_path)

    def described(self) -> dict[str, str | int | None]:
        """What it is, and with which versions."""
        said: dict[str, str | int | None] = {"device": self.device(), "cpu": platform.machine()}
        said |= {"cores": os.cpu_count(), "python": platform.python_version()}
        for name in TOLD:
            try:
                said[name] = version(name)
            except PackageNotFoundError:
                said[name] = None
        return said | {"model": self.shape.name if self.shape else self.model}

    def device(self) -> str:
        """The device's name."""
        if self.emulated is not None:
            profile = DeviceProfile.load(self.emulated)
            return f"emulated {profile.device}"
        if self.toy or shutil.which("nvidia-smi") is None:
            return "CPU platform" if self.toy else "no nvidia-smi"
        told = asked_nvidia("name,driver_version,memory.total")
        return told.splitlines()[0] if told else "nvidia-smi says nothing"

    def gpus(self) -> int:
        """GPUs that servers can use."""
        return 0 if self.toy or self.emulated else len(asked_nvidia("name").splitlines())

    def memory(self) -> int:
        """Bytes of the first GPU's memory, or of the emulated device's; 0 without one."""
        if self.emulated is not None:
            return DeviceProfile.load(self.emulated).device_memory
        told = asked_nvidia("memory.total").split() if self.gpus() else []
        return int(told[0]) << 20 if told else 0


def paths_for_python() -> str:
    """Where processes that are started here import from, as PYTHONPATH."""
    return os.pathsep.join([*map(str, PATHS), *filter(None, [os.environ.get("PYTHONPATH")])])


def asked_nvidia(what: str) -> str:
    """What nvidia-smi says of each GPU, a line each; nothing where it is not there."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def make_model(folder: Path, shape: Model, *, fp8: bool = False) -> Path:
    """A folder with configuration and tokenizer and no weights, for `--load-format dummy`."""
    tokens = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    vocabulary = max(shape.vocabulary, LEAST_VOCABULARY)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **tokens,
    }
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(tokens))
    make_tokenizer(vocabulary).save_pretrained(folder)
    return folder


def shorten(log: Path) -> None:
    """Keep a log's end; its beginning, with the server's arguments, where it is short."""
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.write_bytes(b"(its beginning is cut off)\n" + log.read_bytes()[-LOG_BYTES:])
