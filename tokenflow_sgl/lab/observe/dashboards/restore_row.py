"""Restoration from storage: how prefixes came back, and what that saved."""

from __future__ import annotations

from tokenflow_sgl.lab.observe.dashboards.panels import SERVER, Kind, Panel, Query, Row, rate

NO_RESTORE = "no prefix has been restored from storage yet"

RESTORATION = Row(
    "Restoration from storage",
    (
        Panel(
            "Prefixes by way",
            "Prefixes found in storage, per second: computed and fetched at once, only fetched, or "
            "only computed (--tokenflow-restore).",
            "short",
            tuple(
                Query(rate("tokenflow:restorations_total", where=f'{SERVER},way="{way}"'), way)
                for way in ("both", "fetched", "computed")
            ),
            Kind.STACKED,
            width=8,
        ),
        Panel(
            "Tokens by source",
            "Tokens of these prefixes per second by where their KV came from.",
            "short",
            tuple(
                Query(
                    rate("tokenflow:restored_tokens_total", where=f'{SERVER},source="{source}"'),
                    source,
                    NO_RESTORE,
                )
                for source in ("fetched", "computed")
            ),
            Kind.STACKED,
            width=8,
        ),
        Panel(
            "Time against a single source",
            "Time of the restorations over what the faster one of computing all and fetching all "
            "would have taken, by the measured costs. Below 1: both at once saved time.",
            "percentunit",
            (
                Query(
                    rate("tokenflow:restore_seconds_total")
                    + " / "
                    + rate("tokenflow:restore_single_source_seconds_total"),
                    "restored / single source",
                    NO_RESTORE,
                ),
            ),
            width=8,
        ),
        Panel(
            "Copied ahead",
            "Share of the fetched tokens that were on the device when the head met the tail. The "
            "others are copied then: memory was short, or costs were not known yet.",
            "percentunit",
            (
                Query(
                    rate("tokenflow:restore_copied_ahead_tokens_total")
                    + " / "
                    + rate("tokenflow:restored_tokens_total", where=f'{SERVER},source="fetched"'),
                    "copied ahead",
                    NO_RESTORE,
                ),
            ),
            width=8,
        ),
        Panel(
            "Busy while restoring",
            "Share of the time in which prefixes were being restored that the device computed, and "
            "that the link to the storage was loading for them.",
            "percentunit",
            tuple(
                Query(
                    rate(
                        "tokenflow:restoring_busy_seconds_total",
                        where=f'{SERVER},resource="{resource}"',
                    )
                    + " / "
                    + rate("tokenflow:restoring_seconds_total"),
                    resource,
                    NO_RESTORE,
                )
                for resource in ("device", "link")
            ),
            width=8,
        ),
        Panel(
            "Failed fetches",
            "Fetches per second that the storage ended early. What was missing was computed.",
            "short",
            (Query(rate("tokenflow:restore_fetch_failures_total"), "failed"),),
            width=8,
        ),
    ),
)
