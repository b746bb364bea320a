import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.contract import (
    Cause,
    Decision,
    Memory,
    Mode,
    Phase,
    Pool,
    Standing,
    State,
    Streams,
    Tier,
)
from tokenflow_sgl.engine import model_kinds, terms, unsupported
from tokenflow_sgl.engine.sglang import version
from tokenflow_sgl.engine.telemetry import prometheus
from tokenflow_sgl.engine.unsupported import BACKUP, NO_BACKUP, OF_DECODING
from tokenflow_sgl.qos import classes

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def rows(page):
    """The table rows of a page, as tuples of cells."""
    lines = (DOCS / page).read_text().splitlines()
    return [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in lines
        if line.startswith("| ") and not line.startswith("| ---")
    ]


def test_flags_page_is_the_generated_one():
    result = CliRunner().invoke(app, ["docs", "flags"])
    assert result.exit_code == 0
    assert (DOCS / "flags.md").read_text() == result.output, (
        "run: tokenflow docs flags > docs/flags.md"
    )


def test_flags_page_names_the_flags_of_the_parser():
    import argparse

    from tokenflow_sgl.engine.flags import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    page = (DOCS / "flags.md").read_text()
    for action in parser._actions:
        for option in action.option_strings:
            if "tokenflow" in option:
                # Those of before are refused, and no help shows them.
                assert (f"`{option}`" in page) is (action.help != argparse.SUPPRESS)


def test_refused_options_are_documented_with_their_reasons():
    documented = {
        cells[0].split("`")[1]: cells[1]
        for cells in rows("compatibility.md")
        if len(cells) == 2 and cells[0].startswith("`--")
    }
    assert documented == {unsupported._flag(name): why for name, _, why in unsupported._OPTIONS}
    page = (DOCS / "compatibility.md").read_text()
    assert unsupported._DP_GROUPS in page
    assert f"| DP attention with `--enable-prefill-delayer` | {unsupported._DELAYER} |" in page
    of_decoding = [(name, why) for name, _, why in OF_DECODING]
    for name, why in [*of_decoding, (BACKUP, NO_BACKUP)]:
        assert f"| decode servers: `{unsupported._flag(name)}`" in page
        assert f"| {why} |" in page
    assert f"| decode servers on SGLang 0.5.22 | {unsupported._TWICE} |" in page
    for name, _, why in unsupported._OF_SPECULATION:
        assert f"| with speculation: `{unsupported._flag(name)}`" in page
        assert f"| {why} |" in page


def test_refused_models_are_documented_with_their_sentences(monkeypatch):
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.22")
    documented = {cells[0]: cells[1] for cells in rows("compatibility.md") if len(cells) == 2}
    plain = {
        "is_generation": True,
        "is_deepseek_v41": False,
        "is_deepseek_v4": False,
        "has_windows": False,
    }
    for kind, value in plain.items():
        refusal = model_kinds.refused_model(**{**plain, kind: not value})
        assert documented[refusal.subject] == refusal.sentence


def test_every_proof_of_compatibility_is_a_test_on_real_sglang():
    proofs = [
        cells[2].strip("`")
        for cells in rows("compatibility.md")
        if len(cells) == 4 and cells[2].startswith("`tests/")
    ]
    assert len(proofs) > 15
    for proof in proofs:
        file, _, name = proof.partition("::")
        text = (ROOT / file).read_text()
        assert f"\ndef {name}(" in text, proof
        assert "pytest.mark.engine" in text, proof


def test_requests_that_are_not_preempted_are_documented():
    tree = ast.parse(inspect.getsource(unsupported.undisturbed_reason))
    reasons = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Return)
        and isinstance(node.value, ast.Constant)
        and node.value.value
    ]
    assert len(reasons) > 5
    page = (DOCS / "scheduler.md").read_text()
    for reason in reasons:
        assert f"- {reason}\n" in page


def test_metrics_page_is_the_generated_one():
    result = CliRunner().invoke(app, ["docs", "metrics"])
    assert result.exit_code == 0
    assert (DOCS / "metrics.md").read_text() == result.output, (
        "run: tokenflow docs metrics > docs/metrics.md"
    )


def test_host_memory_page_is_the_generated_one():
    result = CliRunner().invoke(app, ["docs", "host-memory"])
    assert result.exit_code == 0
    assert (DOCS / "host-memory.md").read_text() == result.output, (
        "run: tokenflow docs host-memory > docs/host-memory.md"
    )


def test_metrics_page_has_every_value_of_its_labels():
    first = {cells[0] for cells in rows("metrics.md") if len(cells) == 2}
    values = [each.value for each in (*Cause, *Mode)] + [*prometheus.SOURCES, "store", "load"]
    assert first >= {f"`{value}`" for value in values}
    text = (DOCS / "metrics.md").read_text()
    assert all(f"{percentile}" in text for percentile in prometheus.PERCENTILES)


def test_rates_page_states_the_classes():
    documented = {cells[0]: list(cells[1:5]) for cells in rows("rates.md") if len(cells) == 6}
    for name, of in classes.SHIPPED.items():
        assert documented[f"`{name}`"] == [
            *(f"{value:g}" for value in (of.rate, of.tolerance, of.weight)),
            "yes" if of.reader else "no",
        ]


def test_rates_page_has_a_file_of_classes_that_is_one(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCS / "rates.md").read_text(), re.DOTALL)
    (tmp_path / "classes.toml").write_text(text)
    assert len(classes.load_classes(tmp_path / "classes.toml").known) > len(classes.SHIPPED)


def test_rates_page_has_every_field_of_a_class():
    documented = {cells[0] for cells in rows("rates.md") if len(cells) == 4}
    fields = {f"`{item.name}`" for item in dataclasses.fields(classes.QosClass)} - {"`name`"}
    assert documented >= fields


@pytest.mark.parametrize(
    "params",
    [
        {"tokenflow_rate": "fast"},
        {"tokenflow_rate": 5000},
        {"tokenflow_class": "skim"},
        {"tokenflow_rate": 20, "tokenflow_class": "agent"},
        {"tokenflow_rte": 20},
    ],
)
def test_rates_page_quotes_the_refusals(params):
    with pytest.raises(terms.RateError) as error:
        terms.class_of(params, classes.SHIPPED_CLASSES)
    assert f"> {error.value}\n" in (DOCS / "rates.md").read_text()


def test_the_example_policy_decides():
    import numpy as np

    from tokenflow_sgl.costs import StepCosts

    source = re.search(r"```python\n(.*?)```", (DOCS / "scheduler.md").read_text(), re.DOTALL)
    assert source is not None
    names = {}
    exec(source.group(1), names)
    state = State(
        now=1.0,
        streams=Streams(
            standing=Standing(
                slot=np.array([4, 7, 2]),
                phase=np.array([Phase.WAITING, Phase.RUNNING, Phase.PAUSED], dtype=np.int8),
                since=np.zeros(3),
            ),
            arrival=np.zeros(3),
            rate=np.full(3, 10.0),
            next_due=np.zeros(3),
            prompt=np.array([30, 20, 10]),
            generated=np.array([0, 5, 5]),
            limit=np.full(3, 50),
            kind=np.zeros(3, dtype=np.int64),
            admitted=np.zeros(3, dtype=np.bool_),
            preemptible=np.ones(3, dtype=np.bool_),
            streaming=np.ones(3, dtype=np.bool_),
            ready=np.zeros(3, dtype=np.bool_),
            unwritten=np.zeros(3, dtype=np.int64),
        ),
        memory=Memory(device=Tier(kv=Pool(1000, 500)), host=Tier(), page_size=1, max_running=8),
        costs=StepCosts(),
    )
    assert names["ShortestPromptFirst"]().decide(state) == Decision(Mode.WORKING_SET, run=(2, 4))


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"(?<!!)\[[^]]*\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
