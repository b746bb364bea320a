"""A profile from what measure.py found, and how it differs from a shipped one.

    python benchmarks/gpu/compare.py gpu-results --against h200

Writes FOLDER/profile.json, which emulator and simulator take with --profile, and FOLDER/table.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.profiles import MODELS, DeviceProfile, Model, load_profile
from tokenflow_sgl.lab.profiles.fit import fit
from tokenflow_sgl.lab.profiles.measured import Measurement, read_measurements


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where measure.py wrote to")
    parser.add_argument("--against", default="h200", help="a device of `tokenflow profile list`")
    args = parser.parse_args()
    rest: dict[str, Any] = json.loads((args.folder / "measured.json").read_text())
    rows = read_measurements(args.folder / "measured.csv")
    model = Model(**rest["model"])
    profile, _ = fit(
        rows,
        device=rest["device"],
        model=model,
        memory=rest["memory"],
        source=f"measured with torch {rest['torch']} on {rest['device']}",
    )
    profile.save(args.folder / "profile.json")
    shipped = load_profile(args.against, model.name if model.name in MODELS else "llama3-8b")
    text = f"# {rest['device']} against the shipped profile of {args.against}\n\n"
    text += "\n".join([*steps(rows, shipped), "", *beyond(rest, shipped)]) + "\n"
    (args.folder / "table.md").write_text(text)
    print(text)
    print(f"{args.folder}: profile.json and table.md written.")


def steps(rows: list[Measurement], shipped: DeviceProfile) -> list[str]:
    """Each measured step and copy, what the shipped profile says, and the difference."""
    lines = ["| step | measured, ms | shipped, ms | difference |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        if row.kind == "decode":
            name = f"decode, {row.batch} rows of {row.context:,}"
            expected = shipped.decode_seconds(row.batch, row.batch * row.context)
        elif row.kind == "eager":
            name = f"decode, {row.batch} rows of {row.context:,}, without a graph"
            expected = max(
                shipped.decode.at(row.batch, row.context),
                shipped.launch.decode,
            )
        elif row.kind == "prefill":
            name = f"prefill, {row.tokens:,} after {row.context:,}"
            work = attention_work(float(row.tokens), row.context)
            expected = shipped.prefill_seconds(row.tokens, work)
        else:
            name = f"{row.kind}, {row.tokens:,} tokens"
            link = shipped.host_to_device if row.kind == "load" else shipped.device_to_host
            expected = link.seconds(row.tokens * shipped.kv_bytes_per_token)
        lines.append(_line(name, row.seconds, expected))
    return lines


def beyond(rest: dict[str, Any], shipped: DeviceProfile) -> list[str]:
    """Mixed steps, and what no profile says: launches, pieces of copies, copies beside steps."""
    lines = [
        "| mixed step | in a graph, ms | without, ms | shipped, ms | difference of the first |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for item in rest["mixed"]:
        rows, context, chunk = item["rows"], item["context"], item["chunk"]
        # A chunk of one token is a row to the device.
        more = 1 if chunk == 1 else 0
        work = 0.0 if more else attention_work(float(chunk))
        expected = shipped.mixed_seconds(
            0 if more else chunk, work, rows + more, rows * context + more
        )
        name = f"{rows} rows of {context:,} and {chunk:,} new"
        lines.append(
            f"| {name} | {_ms(item['graph_s'])} | {_ms(item['eager_s'])} | {_ms(expected)} | "
            f"{item['graph_s'] / expected - 1:+.1%} |"
        )
    lines += ["", "| prefill | in a graph, ms | without, ms |", "| --- | ---: | ---: |"]
    lines += [
        f"| {item['chunk']:,} after {item['prefix']:,} | {_ms(item['graph_s'])} | "
        f"{_ms(item['eager_s'])} |"
        for item in rest["prefill_launch"]
    ]
    lines += ["", "| GB/s of a copy | bytes of a piece | a call each | one graph | one call |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for item in rest["pieces"]:
        rates = [item.get(f"{how}bytes_per_second") for how in ("", "graph_", "batch_")]
        told = " | ".join(f"{rate / 1e9:.2f}" if rate else "" for rate in rates)
        lines.append(f"| {item['kind']} | {item['piece_bytes']:,} | {told} |")
    if rest["beside"]:
        lines += ["", "| step | copy beside it | step, ms | alone | GB/s | alone |"]
        lines += ["| --- | --- | ---: | ---: | ---: | ---: |"]
    for item in rest["beside"]:
        slow, fast = (item["bytes"] / item[key] / 1e9 for key in ("copy_beside_s", "copy_alone_s"))
        times = " | ".join(_ms(item[key]) for key in ("step_beside_s", "step_alone_s"))
        lines.append(f"| {item['step']} | {item['kind']} | {times} | {slow:.1f} | {fast:.1f} |")
    return lines


def _line(name: str, measured: float, expected: float) -> str:
    return f"| {name} | {_ms(measured)} | {_ms(expected)} | {measured / expected - 1:+.1%} |"


def _ms(value: float) -> str:
    return f"{1e3 * value:.3f}"


if __name__ == "__main__":
    main()
