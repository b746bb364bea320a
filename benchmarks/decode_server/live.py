"""The decode server of a disaggregated pair on an emulated device, stock SGLang against tokenflow.

    python benchmarks/decode_server/live.py 4090-b h200-b

The workloads of benchmarks/burst, and the same requests for both. There is no prefill server: KV
and first token of a request are there as soon as its memory is, by SGLang's own `fake` transfer,
which its benchmarks of decode servers use, too. So a time to the first token is what the decode
server makes a request wait. Time is virtual: figures repeat, whatever else runs. The servers see
the client's limit of each answer and not its length. The figures go to
benchmarks/results/decode_server/, and from there into README.md's table beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from run import PAIR, ROOT, keep, measure
from suite import CONTENDERS, LOADS
from table import replace_table, table

PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "decode_server"
DECODES = ("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake")
NAMED = [name for name, load in LOADS.items() if "FILE" not in load.trace]
"""Those of Table 1 of the TokenFlow paper."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", choices=NAMED, metavar="WORKLOAD")
    parser.add_argument("--output", type=Path, default=Path("decode-server-results"))
    given = parser.parse_args()
    for name in given.workloads:
        load = LOADS[name]
        for contender in PAIR:
            options = (*DECODES, *CONTENDERS[contender])
            folder = given.output / name / contender
            measure(load, load.trace, contender, options, folder, None)
            path = RESULTS / f"{name}.json"
            keep(path, name, load, load.trace, contender, options, folder, time="virtual")
    write()


def write() -> None:
    """Write the table of what is there into the page."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    text = table(results, [name for name in NAMED if name in results], PAIR)
    PAGE.write_text(replace_table(PAGE.read_text(), "table", text))


if __name__ == "__main__":
    main()
