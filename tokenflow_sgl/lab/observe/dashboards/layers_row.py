"""KV layer by layer: what lies on the host, what of it moves, and what waits for it."""

from __future__ import annotations

from tokenflow_sgl.lab.observe.dashboards.panels import SERVER, Kind, Panel, Query, Row, level, rate

NO_LAYERS = "KV is not placed layer by layer (--tokenflow-layerwise)"

LAYERS = Row(
    "KV layer by layer",
    (
        Panel(
            "KV on the host",
            "Share of all KV, that of paused streams and of the prefix cache too, that lies in "
            "host memory (--tokenflow-layerwise).",
            "percentunit",
            (Query(level("tokenflow:layers_host_share"), "on the host", NO_LAYERS),),
        ),
        Panel(
            "KV that moves",
            "KV tokens per second, of all layers: staged for steps that read them from the host, "
            "and moved for good between device and host.",
            "short",
            (
                Query(rate("tokenflow:layers_staged_tokens_total"), "staged"),
                *(
                    Query(
                        rate(
                            "tokenflow:layers_moved_tokens_total",
                            where=f'{SERVER},direction="{direction}"',
                        ),
                        legend,
                        NO_LAYERS,
                    )
                    for legend, direction in (("to the host", "store"), ("back", "load"))
                ),
            ),
        ),
        Panel(
            "Waits for KV",
            "Share of the time in which the device waits. staging: for a layer that a step reads "
            "from the host. stores: until new tokens have left for it. moves: before a step, for "
            "KV that moves for good.",
            "percentunit",
            tuple(
                Query(
                    rate("tokenflow:layers_wait_seconds_total", where=f'{SERVER},cause="{cause}"'),
                    cause,
                    NO_LAYERS,
                )
                for cause in ("staging", "stores", "moves")
            ),
            Kind.STACKED,
        ),
    ),
)
