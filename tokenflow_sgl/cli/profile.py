"""``tokenflow profile``: lists and shows device profiles, and fits one to measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.cli.chosen_engine import DeviceName, ModelName, needed_for_times
from tokenflow_sgl.cli.extras import need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import finite, output_file, picture

if TYPE_CHECKING:
    from tokenflow_sgl.lab.profiles.device_profile import DeviceProfile
    from tokenflow_sgl.lab.profiles.fit import Residual

profile_app = typer.Typer(
    help="Step and copy times of devices, for the emulator and the simulator.",
    no_args_is_help=True,
)
Picture = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, help="Draw decode and prefill times into this picture.", callback=picture
    ),
]


@profile_app.command("list")
def list_profiles() -> None:
    """List all devices and models: where times come from, KV size, pools and link."""
    from tokenflow_sgl.lab.profiles.devices import DEVICES
    from tokenflow_sgl.lab.profiles.document import ProfileError
    from tokenflow_sgl.lab.profiles.load import pool_tokens
    from tokenflow_sgl.lab.profiles.model_shapes import MODELS
    from tokenflow_sgl.lab.profiles.profile_table import plain_table

    console = Console()
    columns = ("device", "memory GB", "link to host", "GB/s", "times from")
    devices = plain_table(*columns, right=(1, 3))
    for device in DEVICES.values():
        devices.add_row(
            device.name,
            f"{device.memory / 1e9:.1f}",
            device.link_name,
            f"{device.link.bandwidth / 1e9:.0f}",
            f"aiconfigurator {device.system}" if device.system else "roofline",
        )
    models = plain_table("model", "layers", "weights GB", "KV bytes/token", right=(1, 2, 3))
    for model in MODELS.values():
        models.add_row(
            model.name,
            str(model.layers),
            f"{model.weight_bytes / 1e9:.1f}",
            str(model.kv_bytes_per_token),
        )
    heads = [name.replace("-", "\n") for name in MODELS]  # or they would not fit side by side
    pools = plain_table("", *heads, right=range(1, len(MODELS) + 1))
    pools.title = "KV pool, thousands of tokens"
    pools.padding = (0, 0, 0, 1)  # one space apart
    for device in DEVICES.values():
        cells = []
        for model in MODELS.values():
            try:
                cells.append(f"{pool_tokens(device, model) / 1000:.0f}")
            except ProfileError:
                cells.append("-")
        pools.add_row(device.name, *cells)
    for table in (devices, models, pools):
        console.print(table)
        console.print()
    console.print("-: it does not fit, or cannot be divided among so many.", highlight=False)


@profile_app.command()
def show(
    device: Annotated[DeviceName, typer.Argument(help="A device.")],
    model: Annotated[ModelName, typer.Argument(help="A model.")],
    plot: Picture = None,
    estimate_pieces: Annotated[
        bool,
        typer.Option(
            "--estimate-pieces",
            help="With what pieces of copies cost, measured for h100 and h200 and published for "
            "others; see docs/devices.md.",
        ),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Write the profile into this JSON file.", callback=output_file
        ),
    ] = None,
) -> None:
    """Show the step times of a model on a device."""
    console = Console()
    times = needed_for_times(device, None)
    need("A profile", *times, *(("matplotlib",) if plot is not None else ()))
    from tokenflow_sgl.lab.profiles.load import load_profile

    with failing():
        profile = load_profile(device, model)
    if estimate_pieces:
        from dataclasses import replace

        from tokenflow_sgl.lab.profiles.devices import DEVICES

        profile = replace(profile, pieces=DEVICES[device].pieces)
    _print(console, profile)
    _write(console, profile, plot, save)


@profile_app.command()
def fit(
    measurements: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="CSV file; see docs/devices.md.")
    ],
    device: Annotated[str, typer.Option(help="Name of the device that was measured.")],
    model: Annotated[ModelName, typer.Option(help="The model that it served.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", dir_okay=False, help="JSON file to write.", callback=output_file
        ),
    ],
    memory_gib: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=4096.0,
            callback=finite,
            help="Device memory in GiB; needed for a device that 'list' does not know.",
        ),
    ] = None,
    plot: Picture = None,
) -> None:
    """Fit a profile to measured step and copy times, and print how well it repeats them."""
    console = Console()
    if plot is not None:
        need("A picture", "matplotlib")
    from tokenflow_sgl.lab.profiles import fit as fitting
    from tokenflow_sgl.lab.profiles.devices import DEVICES
    from tokenflow_sgl.lab.profiles.load import find_model
    from tokenflow_sgl.lab.profiles.measured import read_measurements

    if memory_gib is not None:
        memory = round(memory_gib * (1 << 30))
    elif device in DEVICES:
        memory = DEVICES[device].memory
    else:
        fail(
            f"--device is {device!r}, which 'list' does not know: say its --memory-gib.",
            Exit.usage,
        )
    with failing():
        profile, residuals = fitting.fit(
            read_measurements(measurements),
            device=device,
            model=find_model(model),
            memory=memory,
            source=f"fitted to {measurements.name}",
        )
    _print(console, profile)
    console.print(_residuals(residuals))
    _write(console, profile, plot, output)


# ---- output -------------------------------------------------------------------------


def _print(console: Console, profile: DeviceProfile) -> None:
    from tokenflow_sgl.lab.profiles.profile_table import facts, step_times

    for table in (facts(profile), *step_times(profile)):
        console.print(table, highlight=False)
        console.print()


def _residuals(residuals: list[Residual]) -> Table:
    from tokenflow_sgl.lab.profiles.profile_table import plain_table

    columns = ("kind", "rows", "method", "mean error", "worst", "in line")
    table = plain_table(*columns, right=(1, 3, 4, 5))
    table.title = "Profile against measurements"
    for item in residuals:
        table.add_row(
            item.kind,
            str(item.rows),
            item.method,
            f"{item.mean:.1%}",
            f"{item.worst:.1%}",
            str(item.worst_line),
        )
    return table


def _write(
    console: Console, profile: DeviceProfile, drawing: Path | None, document: Path | None
) -> None:
    with failing():
        if document is not None:
            document.parent.mkdir(parents=True, exist_ok=True)
            profile.save(document)
            console.print(f"Written: {document}", markup=False, highlight=False, soft_wrap=True)
        if drawing is not None:
            from tokenflow_sgl.lab.profiles.profile_plot import plot

            drawing.parent.mkdir(parents=True, exist_ok=True)
            plot(profile, drawing)
            console.print(f"Drawn: {drawing}", markup=False, highlight=False, soft_wrap=True)
