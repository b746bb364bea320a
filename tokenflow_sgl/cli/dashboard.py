"""``tokenflow dashboard``: Grafana's dashboards of the scheduler's metrics."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tokenflow_sgl.cli.extras import need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import address, finite, output_folder
from tokenflow_sgl.cli.shared_options import shares_options

dashboard_app = typer.Typer(
    help="Grafana dashboards of the scheduler's metrics.", no_args_is_help=True
)
TOKEN_VARIABLE = "GRAFANA_TOKEN"
_MANY = "; can be given more than once.  [default: all]"
_MOST_MINUTES = 366 * 24 * 60.0


@dashboard_app.command("build")
def build(
    output: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder for the JSON files.", callback=output_folder),
    ] = Path("grafana/dashboards"),
) -> None:
    """Write the dashboards as JSON files that Grafana imports or provisions."""
    from tokenflow_sgl.lab.observe.dashboards import BOARDS

    need("A dashboard", "grafana_foundation_sdk")
    from tokenflow_sgl.lab.observe.dashboards.grafana import grafana_json

    for board in BOARDS:
        path = output / f"{board.uid}.json"
        with failing():
            output.mkdir(parents=True, exist_ok=True)
            path.write_text(grafana_json(board))
        typer.echo(f"{path}: {board.title}, {len(board.panels)} panels")


@dashboard_app.command("import")
def import_(
    url: Annotated[str, typer.Argument(help="Base URL of Grafana.", callback=address)],
) -> None:
    """Import the dashboards into a running Grafana, or update them there.

    The environment variable GRAFANA_TOKEN has the token of a service account that may write
    dashboards. Example:

    GRAFANA_TOKEN=glsa_... tokenflow dashboard import http://127.0.0.1:3000
    """
    from tokenflow_sgl.lab.observe import ScrapeError, fetch
    from tokenflow_sgl.lab.observe.dashboards import BOARDS

    need("A dashboard", "grafana_foundation_sdk")
    from tokenflow_sgl.lab.observe.dashboards.grafana import grafana_json

    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        fail(
            f"{TOKEN_VARIABLE} is not set: it is the token of one of Grafana's service accounts.",
            Exit.usage,
        )
    for board in BOARDS:
        body = {"dashboard": json.loads(grafana_json(board)), "overwrite": True}
        with failing():
            answer = fetch(
                url.rstrip("/") + "/api/dashboards/db",
                missing="is this Grafana's base URL?",
                data=json.dumps(body).encode(),
                headers={"content-type": "application/json", "authorization": f"Bearer {token}"},
                method="POST",
            )
            if not _imported(answer):
                raise ScrapeError(f"{url} does not answer like Grafana: nothing was imported")
        typer.echo(f"{board.title}: {url.rstrip('/')}/d/{board.uid}")


def _imported(answer: bytes) -> bool:
    """Whether Grafana says that it has taken a dashboard."""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("status") == "success"


@dataclass(frozen=True, kw_only=True)
class DrawnSeries:
    """The options that say which series the pictures show."""

    model: Annotated[list[str] | None, typer.Option(help=f"Only this model's streams{_MANY}")] = (
        None
    )
    instance: Annotated[
        list[str] | None, typer.Option(help=f"Only this server, as Prometheus names it{_MANY}")
    ] = None
    class_: Annotated[
        list[str] | None, typer.Option("--class", help=f"Only this class of readers{_MANY}")
    ] = None
    baseline: Annotated[
        str, typer.Option(metavar="INSTANCE", help="Baseline of the replay comparison.")
    ] = "127.0.0.1:30000"
    candidate: Annotated[
        str, typer.Option(metavar="INSTANCE", help="Candidate of the replay comparison.")
    ] = "127.0.0.1:30001"

    @property
    def wanted(self) -> dict[str, list[str]]:
        """Values by label; an empty list: all."""
        return {
            "model": self.model or [],
            "instance": self.instance or [],
            "class": self.class_ or [],
        }

    @property
    def sides(self) -> dict[str, str]:
        """The two instances of the replay comparison."""
        return {"baseline": self.baseline, "candidate": self.candidate}


@dashboard_app.command("render")
@shares_options
def render(
    prometheus: Annotated[str, typer.Argument(help="Base URL of Prometheus.", callback=address)],
    output: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder for the pictures.", callback=output_folder),
    ] = Path("dashboards"),
    last: Annotated[
        float,
        typer.Option(
            metavar="MINUTES",
            min=0.5,
            max=_MOST_MINUTES,
            help="Time span of the pictures, up to now.",
            callback=finite,
        ),
    ] = 15.0,
    *,
    only: DrawnSeries,
) -> None:
    """Draw the dashboards from a Prometheus server, without Grafana.

    One PNG per dashboard, of all models, instances and classes unless some are named. Examples:

    tokenflow dashboard render http://127.0.0.1:9090 --last 30

    tokenflow dashboard render http://127.0.0.1:9090 --instance 127.0.0.1:30001
    """
    from tokenflow_sgl.lab.observe.dashboards import BOARDS
    from tokenflow_sgl.lab.observe.dashboards.chosen_series import chosen, literal
    from tokenflow_sgl.lab.observe.dashboards.prometheus_source import Prometheus

    need("A picture", "matplotlib")
    from tokenflow_sgl.lab.observe.dashboards.render import render as draw

    end = time.time()
    start = end - 60.0 * last
    with failing():
        variables = chosen(Prometheus(prometheus), only.wanted, start, end)
    sides = {side: literal(instance) for side, instance in only.sides.items()}
    source = Prometheus(prometheus, {**variables, **sides})
    console = Console(stderr=True)
    panels = sum(len(board.panels) for board in BOARDS)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("drawing panels", total=panels)
        for board in BOARDS:
            path = output / f"{board.uid}.png"
            with failing():
                draw(
                    board,
                    source,
                    path,
                    start=start,
                    end=end,
                    progress=lambda: progress.advance(task),
                )
            typer.echo(f"{path}: {board.title}")
