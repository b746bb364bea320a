"""Scheduler and memory: what the scheduler is doing, and what it costs."""

from __future__ import annotations

from tokenflow_sgl.lab.observe.dashboards.layers_row import LAYERS
from tokenflow_sgl.lab.observe.dashboards.overview_board import VARIABLES
from tokenflow_sgl.lab.observe.dashboards.panels import (
    SERVER,
    Board,
    Kind,
    Panel,
    Query,
    Row,
    level,
    quantile,
    rate,
)
from tokenflow_sgl.lab.observe.dashboards.restore_row import RESTORATION

NO_SWITCH = "no stream has been preempted yet"
NO_COPY = "nothing has been copied yet"
DIRECTIONS = {"to the host": "hicache_backup", "back": "load_back"}

SCHEDULER = Row(
    "Scheduler",
    (
        Panel(
            "Streams",
            "Streams by state. Waiting streams have no first token yet. The policy does not admit "
            "them as long as that would make readers stall.",
            "short",
            tuple(
                Query(level(f"tokenflow:{name}_streams"), name)
                for name in ("running", "paused", "waiting")
            ),
            Kind.STACKED,
        ),
        Panel(
            "Mode",
            "idle: no stress, SGLang's own policy runs. working-set: the policy decides. fallback: "
            "the policy failed.",
            "short",
            (Query(f"max by (mode) (tokenflow:mode{{{SERVER}}})", "{{mode}}"),),
            Kind.STATES,
        ),
        Panel(
            "Preemptions",
            "Per second, by cause.",
            "short",
            (Query(rate("tokenflow:preemptions_total", "cause"), "{{cause}}"),),
            Kind.STACKED,
        ),
        Panel(
            "Resumes",
            "Per second, by where most of the stream's KV was. device: still there, or prefetched. "
            "host: loaded with the step. nowhere: recomputed.",
            "short",
            (Query(rate("tokenflow:resumes_total", "source"), "{{source}}"),),
            Kind.STACKED,
        ),
        Panel(
            "Changes of mode",
            "Per minute. Many changes: the server is at the edge of stress.",
            "short",
            (Query(f"60 * {rate('tokenflow:mode_changes_total', 'mode')}", "{{mode}}"),),
        ),
        Panel(
            "Policy pass",
            "Time of one pass of the policy, outside idle mode.",
            "s",
            tuple(
                Query(quantile(share, "tokenflow:policy_pass_seconds"), f"P{100 * share:g}")
                for share in (0.5, 0.99)
            ),
        ),
        Panel(
            "Time in the scheduler loop",
            "Share of the time of SGLang's scheduler loop that this scheduler adds.",
            "percentunit",
            (Query(rate("tokenflow:scheduling_seconds_total"), "scheduling"),),
            thresholds=((0.01, "orange"),),
        ),
        Panel(
            "Failures",
            "Passes per second in which the policy failed and SGLang's own policy decided; streams "
            "per second that SGLang ended without telling the scheduler; lines per second that the "
            "decision log lost, because the disk is full or slow.",
            "short",
            (
                Query(rate("tokenflow:policy_errors_total"), "failures"),
                Query(rate("tokenflow:lost_streams_total"), "lost streams"),
                Query(rate("tokenflow:decision_log_lost_lines_total"), "lines of the log"),
            ),
            thresholds=((0.01, "red"),),
            width=4,
        ),
        Panel(
            "Rests that the server ended",
            "Per second, by reason. limit: the stream had rested for as long as it may. awaited: "
            "new weights, an adapter's end, a flush or the server's end waits for streams.",
            "short",
            (Query(rate("tokenflow:rests_ended_total", "reason"), "{{reason}}"),),
            width=4,
        ),
        Panel(
            "Working set",
            "Streams that were admitted and have not ended.",
            "short",
            (Query(level("tokenflow:working_set_streams"), "working set"),),
            width=4,
        ),
        Panel(
            "Token deposits",
            "Tokens that were generated and wait for the moment at which the front end delivers "
            "them, of streams with a token deposit.",
            "short",
            (Query(f"sum(tokenflow:deposit_tokens{{{SERVER}}})", "tokens"),),
            width=4,
        ),
    ),
)
MEMORY = Row(
    "Memory and link",
    (
        Panel(
            "KV memory of the device",
            "Share of the tokens that running streams hold.",
            "percentunit",
            (Query(f"max(sglang:token_usage{{{SERVER}}})", "used"),),
        ),
        Panel(
            "KV memory of the host",
            "Share of the host pool that is taken. It is a cache, so full is normal: the oldest "
            "copies make place for newer ones. Where paused streams had them, they are recomputed "
            "(Resumes: nowhere).",
            "percentunit",
            (
                Query(
                    f"max(sglang:hicache_host_used_tokens{{{SERVER}}} / "
                    f"sglang:hicache_host_total_tokens{{{SERVER}}})",
                    "used",
                ),
            ),
        ),
        Panel(
            "Copies",
            "Bytes per second over the link between device and host memory.",
            "Bps",
            tuple(
                Query(rate(f"sglang:{name}_bytes_total"), label, NO_COPY)
                for label, name in DIRECTIONS.items()
            ),
        ),
        Panel(
            "Rate of the link",
            "KV tokens per second during copies, as measured; the policy uses this figure.",
            "short",
            (
                Query(
                    f"max by (direction) (tokenflow:link_tokens_per_second{{{SERVER}}})",
                    "{{direction}}",
                    NO_COPY,
                ),
            ),
        ),
        Panel(
            "Not landed yet",
            "KV tokens of copies that were started and have not landed.",
            "short",
            (
                Query(
                    f"sum by (direction) (tokenflow:link_queue_tokens{{{SERVER}}})",
                    "{{direction}}",
                    NO_COPY,
                ),
            ),
        ),
        Panel(
            "Duration of a copy, P99",
            "From its start to its landing.",
            "s",
            tuple(
                Query(quantile(0.99, f"sglang:{name}_duration_seconds"), label, NO_COPY)
                for label, name in DIRECTIONS.items()
            ),
        ),
    ),
)
SWITCHES = Row(
    "Context switches",
    (
        Panel(
            "Left to copy by a preemption",
            "Tokens of a preempted stream without a copy on the host. More than a page: proactive "
            "writes do not keep up.",
            "short",
            tuple(
                Query(
                    quantile(share, "tokenflow:preemption_tail_tokens"),
                    f"P{100 * share:g}",
                    NO_SWITCH,
                )
                for share in (0.5, 0.99)
            ),
            width=6,
        ),
        Panel(
            "Write amplification",
            "Tokens written proactively for each that a preemption needed.",
            "short",
            (
                Query(
                    rate("tokenflow:written_ahead_tokens_total")
                    + " / "
                    + rate("tokenflow:written_ahead_needed_tokens_total"),
                    "written / needed",
                    NO_SWITCH,
                ),
            ),
            thresholds=((2, "orange"),),
            width=6,
        ),
        Panel(
            "Copies that are kept",
            "Tokens copied to the host for each that preempted streams held. It would be 1 if no "
            "copy were kept from one preemption to the next.",
            "short",
            (
                Query(
                    rate("sglang:hicache_backup_tokens_total")
                    + " / "
                    + rate("tokenflow:preempted_tokens_total"),
                    "copied / held",
                    NO_SWITCH,
                ),
            ),
            width=6,
        ),
        Panel(
            "KV that came back",
            "Tokens per second of resumed streams: loaded with their step, prefetched, recomputed.",
            "short",
            (
                Query(rate("tokenflow:resume_loaded_tokens_total"), "loaded"),
                Query(rate("tokenflow:loaded_ahead_tokens_total"), "prefetched"),
                Query(rate("tokenflow:resume_recomputed_tokens_sum"), "recomputed", NO_SWITCH),
            ),
            Kind.STACKED,
            width=6,
        ),
        Panel(
            "Prefetches of parts",
            "Per second: parts of paused streams that were loaded because memory for the whole "
            "stream was not free yet (load_chunks of a tuning file).",
            "short",
            (Query(rate("tokenflow:loaded_ahead_chunks_total"), "parts"),),
            width=24,
        ),
    ),
)

TENANTS = Row(
    "Tenants",
    (
        Panel(
            "Streams of tenants",
            "Streams of each tenant that the class file names, and of all others together. Empty "
            "without --tokenflow-tenant-by.",
            "short",
            (Query(f"sum by (tenant) (tokenflow:tenant_streams{{{SERVER}}})", "{{tenant}}"),),
            Kind.STACKED,
            width=12,
        ),
        Panel(
            "Shares of tenants",
            "Share of the running streams' KV that is each tenant's. Decode steps take time for "
            "each about in proportion to it.",
            "percentunit",
            (Query(f"avg by (tenant) (tokenflow:tenant_kv_share{{{SERVER}}})", "{{tenant}}"),),
            Kind.STACKED,
            width=12,
        ),
    ),
)

SCHEDULER_BOARD = Board(
    "tokenflow-scheduler",
    "Scheduler and memory",
    "What the scheduler does with the streams, and what that costs in memory, copies and time.",
    VARIABLES,
    (SCHEDULER, MEMORY, SWITCHES, RESTORATION, LAYERS, TENANTS),
)
