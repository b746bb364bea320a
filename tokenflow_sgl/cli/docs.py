"""``tokenflow docs PAGE``: prints the pages of ``docs/`` that are generated from the code."""

from __future__ import annotations

from dataclasses import Field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tokenflow_sgl.lab.profiles import Model

_FLAGS_INTRO = """\
# Flags

<!-- Generated from the configuration: tokenflow docs flags > docs/flags.md -->

`--scheduler tokenflow` turns the scheduler on. With `--scheduler default`, or without the flag,
SGLang schedules alone, and of the `--tokenflow-*` flags only `--tokenflow-restore` and
`--tokenflow-layerwise` have an effect. A value outside its range stops the start with one sentence.

In a YAML file for `--config` the names are the same without the leading dashes
(`tokenflow-eta: 0.8`). For `tokenflow_sgl.Engine` they are keywords (`tokenflow_eta=0.8`). SGLang's
YAML reader takes no on/off pairs: `--tokenflow-deposit` goes on the command line.

`--tokenflow-eta` and `--tokenflow-burst-eta` belong to the policy `working-set`.
[scheduler.md](scheduler.md) explains what they do.

| flag | default | range | meaning |
| --- | --- | --- | --- |
"""
_TUNING_INTRO = """
## The tuning file

All other parameters stand in one file, named with `--tokenflow-tuning FILE`. The same file is
written by `tokenflow tune --save FILE` and simulated by `tokenflow simulate --tuning FILE`:

```toml
[policy]
switch_factor = 3
park = false

[engine]
longest_rest = 60
```

It is read once, at the start. A flag on the command line beats the file. A file that cannot be
read, a name that is not in the tables below, or a value of another type or outside its range stops
the start with one sentence.

A parameter given as a flag is refused, with the line to write instead.
"""
_POLICY_INTRO = """
`[policy]`, parameters of the policy `working-set` ([scheduler.md](scheduler.md)):

"""
_ENGINE_INTRO = """
`[engine]`, parameters of the server around the policy; the simulator has none of these:

"""
_MEMORY_DEVICES = ("h100", "h200", "b200")
_RANKS = (1, 2, 4, 8)
_NO_ROOM = "-"
_HOST_MEMORY_INTRO = """\
# Host memory by model and TP

<!-- Generated from the profiles: tokenflow docs host-memory > docs/host-memory.md -->

`--scheduler tokenflow` switches HiCache on, which keeps copies of KV in host memory. Its ratio is
the size of that pool over the device's KV. Without an option it is 4 if a rank's pool stays within
128 GB by that, else what makes 128 GB, but at least 2. Only a machine with too little free memory
gets less ([exactly](scheduler.md#host-memory)). What a launch takes, on the machine itself:

```sh
tokenflow doctor -- --model-path Qwen/Qwen3-8B --scheduler tokenflow --tp-size 4
```

The table has GB without an option, of each rank and of all ranks of a server together: computed by
SGLang's formulas, not measured, with BF16 weights and KV and SGLang's default share of the device's
memory. `-`: the weights leave no room for KV. With KV in FP8 the host memory is about the same, and
holds twice as many tokens.

"""
_HOST_MEMORY_END = """
To choose the ratio, the size, or no pool at all:

```sh
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow --hicache-ratio 2
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow --hicache-size 60
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --scheduler tokenflow \\
    --tokenflow-hicache off
```

`--hicache-size` is in GB per rank. Without a host pool KV of paused streams is lost as soon as the
device needs the room, and their resume computes it again. What less memory costs on your traffic:

```sh
tokenflow simulate --trace traces/burst.jsonl --device rtx4090 --model llama3-8b --hicache-ratio 2
```
"""
_TABLE_HEAD = "| name | default | range | meaning |\n| --- | --- | --- | --- |\n"
_ENVIRONMENT = """
## The environment

| variable | meaning |
| --- | --- |
| `TOKENFLOW_CHECK_RANKS=1` | for debugging, with several tensor-parallel ranks: each compares its \
decisions and actions with the leader's in every pass, and ends the server with a sentence if they \
differ; read once, where the options are parsed |
"""


_METRICS_INTRO = """\
# Metrics

<!-- Generated from tokenflow_sgl/metrics: tokenflow docs metrics > docs/metrics.md -->

With `--scheduler tokenflow` and SGLang's `--enable-metrics`, the page `/metrics` has these metrics
beside SGLang's own `sglang:*`. Without `--enable-metrics` nothing is recorded.
[dashboards.md](dashboards.md) has dashboards and alerts for them.

**Labels.** Every series has SGLang's own labels of the scheduler (`model_name`, `engine_type`,
`tp_rank`, `pp_rank`, `moe_ep_rank`, ...). The column "labels" names the additional ones. Only
`qos_class` comes from a request: it is one of the server's classes, `custom`, `default` or
`not-streamed` ([rates.md](rates.md)). So the number of series is bounded: at most 125 per scheduler
and 105 for each class, and 2 for each [tenant](tenants.md) that the class file names and for all
others together. `tokenflow:deposit_tokens` is of the HTTP server, which has other labels of
SGLang's; tokenizer workers add theirs up.

**When they change.** Gauges and per-token counters are updated once a second while the scheduler
has work.

**How full a server is.** `tokenflow:headroom_tokens` says how much more a server can take: add
servers before it comes near 0, and send nothing more to one that is below 0.
`tokenflow:promised_share` says from 0 to 1 how much of the KV memory or of the engine's time, the
larger of the two, is promised to streams. Both are the demand test of admission
([scheduler.md](scheduler.md)) read as an amount, with all waiting streams counted as admitted.
`/v1/loads` has both, also without `--enable-metrics`, as `tokenflow_headroom_tokens` and
`token_usage`; until they are known, `null` and SGLang's own figure. Each data-parallel rank reports
its own. By default SGLang gives the ranks requests in turn, so a server with `--dp-size N` can take
N times the least headroom of its ranks.

Do not change a router for it. In simulation a router that goes by headroom starts answers at best
9 % sooner than round robin; on two unlike emulated servers it started them 47 % later
([fleet](../benchmarks/fleet/README.md)). A
[proxy](../examples/README.md#a-proxy-in-front-of-several-servers) shows how headroom is read.

**What gateways read.** Best `/v1/loads`, which counts paused streams as running. SGLang's gauges
say what is on the device: a busy server fills its KV memory on purpose, so `sglang:token_usage` is
near 1, and paused streams are in neither `sglang:num_running_reqs` nor `sglang:num_queue_reqs`. A
gateway that goes by gauges should read `tokenflow:promised_share` ([fleets](fleet.md)).

**Stalls.** A stall is counted when the token that ends it arrives, if the stall was longer than
0.1 s, the limit of what a person perceives as instantaneous, and than the class tolerates. Stalled
seconds are summed without a threshold. So a stream that is slightly slower than its reader at every
token shows in the seconds but not in the count.

**Readers.** A reader is a model on the server, with the request's rate. Network delays are not in
it. Of a class without readers there are tokens and latencies, but no stalls, buffers or effective
tokens.

**Copies.** SGLang itself counts the copies of KV: `sglang:hicache_backup_*` to the host,
`sglang:load_back_*` back.
"""

_METRICS_END = """
## Values of labels

| `cause` | meaning |
| --- | --- |
| `newcomer` | to free memory for a stream that has no first token yet |
| `exchange` | to free memory for a paused stream that is closer to a stall |
| `memory` | the next decode steps would not fit |
| `park` | far ahead of its reader, while the others are faster without it; or [`pace`](flags.md) |
| `rest` | its reader has looked away: its rate was set to 0 |
| `policy` | any other reason of a policy of your own |

| `reason` | meaning |
| --- | --- |
| `limit` | the stream had rested for [`longest_rest`](flags.md) seconds in all |
| `awaited` | new weights, an adapter to unload, a flush, or the server's end waited for it |

| `mode` | meaning |
| --- | --- |
| `idle` | no stress: the engine's own policy runs unchanged |
| `working-set` | the policy orders admission and preemption |
| `fallback` | the policy failed in this pass; the engine's own policy runs |

| `source` | meaning |
| --- | --- |
| `device` | most of a resumed stream's KV was still there, or had been prefetched |
| `host` | most of it was loaded with the step that resumed the stream |
| `nowhere` | most of it was recomputed |

| `direction` | meaning |
| --- | --- |
| `store` | to host memory |
| `load` | back to the device |

`percentile` is 10, 50 or 90. `stalled` is `yes` for a stream with at least one stall longer than
0.1 s (and than its class tolerates), else `no`. Streams that were aborted or ended without a token
do not count as finished.
"""


class Page(StrEnum):
    """Pages of docs/ that are generated, by the name of their file."""

    flags = "flags"
    metrics = "metrics"
    host_memory = "host-memory"


def docs(page: Annotated[Page, typer.Argument(help="The page to print.")]) -> None:
    """Print a generated page of the documentation, as Markdown."""
    pages = {
        Page.flags: flags_page,
        Page.metrics: metrics_page,
        Page.host_memory: host_memory_page,
    }
    typer.echo(pages[page](), nl=False)


def flags_page() -> str:
    """docs/flags.md: every --tokenflow-* flag with its default, range and meaning."""
    from tokenflow_sgl.engine.config import flag_settings, tuning_tables

    tables = tuning_tables()
    return "".join(
        [
            _FLAGS_INTRO,
            *(
                _row(_flag_names(name, item.default), item)
                for name, item in flag_settings().items()
            ),
            _TUNING_INTRO,
            _POLICY_INTRO + _TABLE_HEAD,
            *(_row(f"`{name}`", item) for name, item in tables["policy"].items()),
            _ENGINE_INTRO + _TABLE_HEAD,
            *(_row(f"`{name}`", item) for name, item in tables["engine"].items()),
            _ENVIRONMENT,
        ]
    )


def _flag_names(name: str, default: Any) -> str:
    flag = f"tokenflow-{name.replace('_', '-')}"
    return f"`--{flag}`, `--no-{flag}`" if isinstance(default, bool) else f"`--{flag}`"


def _row(names: str, item: Field[Any]) -> str:
    default, low, high = item.default, item.metadata["low"], item.metadata["high"]
    if isinstance(default, bool):
        shown = "on" if default else "off"
    else:
        shown = "none" if default == "" else f"`{default}`"
    limits = "" if low is None else f"{low:.9g} to {high:.9g}"
    return f"| {names} | {shown} | {limits} | {item.metadata['help']} |\n"


def metrics_page() -> str:
    """docs/metrics.md: every metric, by group, and the values of the labels."""
    from tokenflow_sgl.metrics import GROUPS

    parts = [_METRICS_INTRO]
    for title, metrics in GROUPS.items():
        parts.append(f"\n## {title}\n\n| name | type | unit | labels | meaning |\n")
        parts.append("| --- | --- | --- | --- | --- |\n")
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            parts.append(
                f"| `{metric.full_name}` | {metric.kind} | {metric.unit} | {labels} | "
                f"{metric.help} |\n"
            )
    return "".join(parts) + _METRICS_END


def host_memory_page() -> str:
    """docs/host-memory.md: host memory by model, ranks, device and ratio."""
    from tokenflow_sgl.lab.profiles import DEVICES, MODELS

    devices = [DEVICES[name] for name in _MEMORY_DEVICES]
    heads = [f"{each.name}, {of}" for each in devices for of in ("each", "all")]
    parts = [_HOST_MEMORY_INTRO, f"| model | TP | {' | '.join(heads)} |\n"]
    parts.append(f"| --- | ---: |{' ---: |' * len(heads)}\n")
    for name, model in MODELS.items():
        for ranks in _RANKS:
            cells = [cell for device in devices for cell in _host_gb(model, ranks, device.memory)]
            if any(cell != _NO_ROOM for cell in cells):
                parts.append(f"| {name} | {ranks} | {' | '.join(cells)} |\n")
    return "".join(parts) + _HOST_MEMORY_END


def _host_gb(model: Model, ranks: int, memory: int) -> tuple[str, str]:
    """Host memory of each rank and of all in GB, or that the weights leave no room for KV."""
    from tokenflow_sgl.host_pool import GB, raised_ratio
    from tokenflow_sgl.lab.profiles import ProfileError
    from tokenflow_sgl.lab.profiles.pool import kv_pool_tokens

    kv = model.held_kv_bytes(ranks)
    try:
        tokens = kv_pool_tokens(
            memory, model.held_weight_bytes(ranks) // ranks, kv // ranks, ranks=ranks
        )
    except ProfileError:
        return _NO_ROOM, _NO_ROOM
    device = tokens * kv / ranks
    each = raised_ratio(device) * device / GB
    return f"{each:,.0f}", f"{ranks * each:,.0f}"
