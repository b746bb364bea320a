"""The live engine's configuration: one record, from which flags and docs are generated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenflow_sgl.engine.layerwise_settings import (
    NO_LAYERS,
    USUAL_RATIO,
    WIDEST_RATIO,
)
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.tenant_setting import TENANTS_OFF, check_tenant_by
from tokenflow_sgl.policy.config import (
    ConfigError,
    WorkingSetConfig,
    check_settings,
    setting,
)
from tokenflow_sgl.policy.tuning_file import read_tuning
from tokenflow_sgl.qos.classes import (
    DEFAULT_CLASS,
    SHIPPED_CLASSES,
    ClassError,
    QosClasses,
    load_classes,
)

ATTRIBUTE = "_tokenflow"
"""Underscore attribute of SGLang's ServerArgs that carries the configuration.

Underscore attributes survive its pickling and stay writable after it is resolved.
"""
RESTORE_ATTRIBUTE = "_tokenflow_restore"
"""The same for `restore`, which works with SGLang's own scheduler, too."""
OFF_ATTRIBUTE = "_tokenflow_off"
"""The same for why the scheduler stays off although it was asked for."""
LAUNCH_ATTRIBUTE = "_tokenflow_launch"
"""The same for a name of the launch that no other one on the machine has."""
TENANT_ATTRIBUTE = "_tokenflow_tenants"
"""The same for the secret under which this launch hashes the keys of who asks."""
COMMAND_ATTRIBUTE = "_tokenflow_command"
"""The same for whether a command line asked for it: then a refusal is a line, and no exception."""
NO_PLANNER = "off"
HIDDEN, SHOWN = "hidden", "shown"
PREFIX = "tokenflow_"
"""Of the settings' names in arguments and keywords."""
TUNING_SETTING = "tuning"
POLICY_TABLE, ENGINE_TABLE = "policy", "engine"
"""Tables of a tuning file: parameters of the policy `working-set`, and of the engine around it."""


@dataclass(frozen=True, slots=True)
class TokenFlowConfig:
    """All that flags and a tuning file say of a server. Absent from ServerArgs: scheduler off.

    Raises:
        ConfigError: A value is out of its range; the message names field, value and what is
            allowed.
    """

    tuning: str = setting(
        "",
        "file of parameters (TOML) that are no flags, as tokenflow tune writes it and tokenflow "
        "simulate --tuning takes it; read once, at the start; a flag beats the file; empty: all "
        "parameters as shipped",
        flag=True,
    )
    policy: str = setting(
        "working-set",
        "policy: working-set, paper (TokenFlow's Eq. 3 to 6 as printed), stock (never "
        "intervenes), or package.module:Class of your own",
        flag=True,
    )
    hicache: str = setting(
        "auto",
        "auto: switch HiCache on, so that KV of paused streams is kept in host memory (SGLang's "
        "own --hicache-* options apply; where none sizes it: 2 to 4 times the device's KV, as "
        "far as the machine has it; a decode server has no HiCache, its pool for such KV is as "
        "large); off: leave it as SGLang's options say",
        words=("auto", "off"),
        flag=True,
    )
    mixed_chunk: str = setting(
        "auto",
        "auto: under stress, running streams decode in the same step as a prefill, as with "
        "SGLang's --enable-mixed-chunk, where its prefill graphs allow it, so that a resume costs "
        "the others no step; off: leave it as SGLang's option says",
        words=("auto", "off"),
    )
    classes: str = setting(
        "",
        "file of classes (TOML): rate, tolerance, weight, reader and objectives of each, and the "
        "default; read once, at the start; empty: the shipped classes",
        flag=True,
    )
    default_rate: str = setting(
        "",
        "rate of requests that state none: tokens per second, or the name of a class; empty: the "
        f"default of the file of classes, or else {DEFAULT_CLASS}",
        flag=True,
    )
    tenant_by: str = setting(
        TENANTS_OFF,
        "who asks, where tenants have shares of the server: api-key (the bearer token, or "
        "x-api-key), user (that of the body), or header:NAME, which a gateway sets; the class file "
        "names tenants and what each is granted; off: requests are not told apart",
        flag=True,
    )
    deposit: bool = setting(
        False,
        "deliver every stream that has a reader from a token deposit: the front end sends one "
        "token per interval (the stream's TBT objective, or else 1 / rate) while it holds any, and "
        "the rest when the answer is complete; a request chooses for itself with tokenflow_deposit",
        flag=True,
    )
    longest_rest: float = setting(
        600.0,
        "seconds for which a stream may rest (its reader's rate was set to 0), all its rests "
        "together; then it goes on at the rate that it had",
        low=1.0,
        high=86400.0,
    )
    thinking: str = setting(
        HIDDEN,
        "hidden: readers do not see the reasoning of a model that thinks, so a stream is served as "
        "one that waits for its first text until its thinking has ended; shown: they read it, too",
        words=(HIDDEN, SHOWN),
        flag=True,
    )
    lengths: str = setting(
        "learned",
        "what tells how long answers get: learned (from those that ended and those under way), "
        "limit (each is as long as its client allows), or package.module:Class of your own",
    )
    length_caution: float = setting(
        0.85,
        "of learned lengths: probability with which the mean length is at most what admission "
        "counts on; matters until some dozen answers have ended; on a decode server at least 0.95",
        low=0.5,
        high=0.99,
    )
    lengths_file: str = setting(
        "",
        "of learned lengths: file in which they survive a restart; read at the start if it is "
        "there, written every minute; data-parallel replicas have one each (FILE, FILE.dp1, ...); "
        "empty: every start learns anew",
        flag=True,
    )
    decision_log: str = setting(
        "",
        "file for tokenflow explain: a JSON line for every pass that pauses, admits, starts or "
        "resumes streams, and for every prefix restored from storage, with request ids and the "
        "figures behind the decision; rotated at 32 MiB, five files; empty: no log",
        flag=True,
    )
    block_groups: bool = setting(
        False,
        "give each stream's KV runs of consecutive pages on the device, in groups of about 1,000 "
        "tokens, so that a pause or a resume is few large copies; needs HiCache",
    )
    restore: str = setting(
        NO_PLANNER,
        "auto: a prefix that lies in HiCache's storage is computed from its head while its tail is "
        "fetched, until they meet; works with either scheduler; off: SGLang fetches all of it or "
        "computes; or package.module:Class of your own, which decides where they meet",
        flag=True,
    )
    layerwise: str = setting(
        NO_LAYERS,
        "experimental, run on the CPU only (written for NVIDIA GPUs, too), with either scheduler: "
        "auto: where streams hold more KV than fits the device, some layers' KV of each lies in "
        "host memory and is fetched while the layers before it compute, those with which decode "
        "steps are shortest; even: the same layers of all streams; off: all KV in use lies on the "
        "device; or package.module:Class of your own, which decides which layers of which stream "
        "lie there",
        flag=True,
    )
    layerwise_ratio: float = setting(
        USUAL_RATIO,
        "of layer-wise KV: tokens that streams may hold over those that fit the device, at most "
        "the number of layers",
        low=1.0,
        high=WIDEST_RATIO,
        flag=True,
    )
    unproved_sglang: bool = setting(
        False,
        "for those who port this package: start on an SGLang that it was not proved on, where "
        "answers may be wrong, and log that; what it needs of SGLang must be there nevertheless",
        flag=True,
    )
    check_ranks: bool = False
    """For debugging, with several tensor-parallel ranks: whether each compares its decisions and
    actions with the leader's in every pass. It rides here, so that all ranks agree about it."""
    working_set: WorkingSetConfig = field(default_factory=WorkingSetConfig)
    known_classes: QosClasses = field(init=False, repr=False, compare=False)
    """Those of the file, or the shipped ones, with the default."""

    def __post_init__(self) -> None:
        # Read here alone: what rides on SGLang's ServerArgs is the same in all processes.
        object.__setattr__(self, "known_classes", self._known_classes())
        check_settings(self)
        object.__setattr__(self, "tenant_by", check_tenant_by(self.tenant_by))
        for name in ("lengths_file", "decision_log"):
            value = getattr(self, name)
            if value and not Path(value).absolute().parent.is_dir():
                raise ConfigError(f"{name} is {value!r}; allowed is a file in a folder that exists")
        if self.lengths_file and self.lengths != "learned":
            raise ConfigError(
                f"lengths_file is {self.lengths_file!r} and lengths {self.lengths!r}; allowed is "
                "such a file with learned lengths"
            )

    def _known_classes(self) -> QosClasses:
        try:
            found = load_classes(self.classes) if self.classes else SHIPPED_CLASSES
        except ClassError as error:
            raise ConfigError(f"classes: {error}") from None
        found = dataclasses.replace(found, deposit=self.deposit)
        if not self.default_rate:
            return found
        try:
            default = self.default_rate
            return found.with_default(default if default in found.known else float(default))
        except ClassError as error:
            raise ConfigError(f"default_{error}") from None
        except ValueError:
            raise ConfigError(
                f"default_rate is {self.default_rate!r}; allowed is a rate in tokens/s or a class: "
                + ", ".join(sorted(found.known))
            ) from None


Settings = dict[str, dataclasses.Field[Any]]


def _own_settings() -> Settings:
    return {item.name: item for item in dataclasses.fields(TokenFlowConfig) if item.metadata}


def _policy_settings() -> Settings:
    return {item.name: item for item in dataclasses.fields(WorkingSetConfig)}


def flag_settings() -> Settings:
    """The settings that have a flag, by name, the engine's own before the policy's."""
    every = {**_own_settings(), **_policy_settings()}
    return {name: item for name, item in every.items() if item.metadata["flag"]}


def tuning_tables() -> dict[str, Settings]:
    """What may stand in a tuning file: of each table its settings by name.

    Those of the policy are all there, with a flag or without: a search for parameters finds both.
    """
    own = {name: item for name, item in _own_settings().items() if not item.metadata["flag"]}
    return {POLICY_TABLE: _policy_settings(), ENGINE_TABLE: own}


def load_tuning(path: str) -> dict[str, dict[str, Any]]:
    """The settings of a tuning file, by table and name; a table that is not there is empty.

    Raises:
        ConfigError: It cannot be read, or something in it cannot be used; the message names the
            file, the field, its value and what is allowed.
    """
    elsewhere = {
        name: f"it is the flag --tokenflow-{name.replace('_', '-')}"
        for name in flag_settings()
        if name not in _policy_settings()
    }
    return read_tuning(path, tuning_tables(), elsewhere)


def build(given: dict[str, Any], *, check_ranks: bool = False) -> TokenFlowConfig:
    """A configuration from settings by name, and from the tuning file if one is among them.

    Args:
        given: Values by name; each beats what the file says.
        check_ranks: As of `TokenFlowConfig`.

    Raises:
        ConfigError: There is no such setting, a value is out of its range, or the file cannot be
            used.
    """
    own, policy = _own_settings(), _policy_settings()
    unknown = sorted(set(given) - set(own) - set(policy))
    if unknown:
        raise ConfigError(
            f"unknown setting tokenflow_{unknown[0]}; allowed are "
            + ", ".join(f"tokenflow_{name}" for name in sorted(flag_settings()))
        )
    tuned = load_tuning(given["tuning"]) if given.get("tuning") else {}
    values = {name: value for table in tuned.values() for name, value in table.items()} | given
    return TokenFlowConfig(
        **{name: value for name, value in values.items() if name in own},
        check_ranks=check_ranks,
        working_set=WorkingSetConfig(
            **{name: value for name, value in values.items() if name in policy}
        ),
    )


def tuned_text(config: TokenFlowConfig) -> str:
    """What is not as shipped of all that a tuning file can say, as one line."""
    tables = tuning_tables()
    return ", ".join(
        f"{name} = {value}"
        for table, record in ((POLICY_TABLE, config.working_set), (ENGINE_TABLE, config))
        for name, item in tables[table].items()
        if (value := getattr(record, name)) != item.default
    )


def restoring_planner(server_args: ServerArgs) -> str:
    """The planner of restorations, with whichever scheduler; NO_PLANNER: there are none."""
    planner: str = getattr(server_args, RESTORE_ATTRIBUTE, NO_PLANNER)
    return planner


def off_reason(server_args: ServerArgs) -> str | None:
    """Why the scheduler stays off although it was asked for; None: it does not."""
    reason: str | None = getattr(server_args, OFF_ATTRIBUTE, None)
    return reason


def config_of(server_args: ServerArgs) -> TokenFlowConfig | None:
    """The configuration that rides on `server_args`, or None while the scheduler is off."""
    config: TokenFlowConfig | None = getattr(server_args, ATTRIBUTE, None)
    return config
