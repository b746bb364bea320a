"""The manifests of examples/kubernetes: how the canary differs, and what is scraped."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from gateways.environment import installed

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "kubernetes"
SERVERS = FOLDER / "servers.yaml"
CANARY = ["--scheduler=tokenflow", "--hicache-size=120"]


def manifests(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def deployments() -> tuple[dict[str, Any], dict[str, Any]]:
    service, stable, canary = manifests(SERVERS)
    for each in (stable, canary):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert labels == each["spec"]["selector"]["matchLabels"] == each["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
    return stable, canary


def test_the_canary_is_one_of_ten_and_differs_in_its_flags_and_memory() -> None:
    stable, canary = deployments()
    assert (stable["spec"]["replicas"], canary["spec"]["replicas"]) == (9, 1)
    ((of_stable,), (of_canary,)) = (
        each["spec"]["template"]["spec"]["containers"] for each in (stable, canary)
    )
    assert of_canary["args"] == [*of_stable["args"], *CANARY]
    assert int(of_canary["resources"]["limits"]["memory"].removesuffix("Gi")) > (
        int(of_stable["resources"]["limits"]["memory"].removesuffix("Gi")) + 120 / 1.0737
    ), "its host pool is GB, and limits are GiB"
    for each in ("args", "resources"):
        del of_stable[each], of_canary[each]
    assert of_canary == of_stable


def test_the_monitor_finds_both_and_the_rules_are_those_of_prometheus() -> None:
    monitor, rule = manifests(FOLDER / "monitoring.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    for each in deployments():
        template = each["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items()
        assert set(monitor["spec"]["podTargetLabels"]) <= set(template["metadata"]["labels"])
        ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]} <= ports
    (scrapes,) = manifests(ROOT / "grafana" / "prometheus" / "prometheus.yml")
    (scrape,) = scrapes["scrape_configs"]
    for end in monitor["spec"]["podMetricsEndpoints"]:
        assert {"targetLabel": "job", "replacement": scrape["job_name"]} in end["relabelings"]
        names = [
            {
                re.sub("_(.)", lambda found: found[1].upper(), key): value
                for key, value in each.items()
            }
            for each in scrape["metric_relabel_configs"]
        ]
        assert end["metricRelabelings"] == names, "rules find no metric by its name otherwise"
    (rules,) = manifests(ROOT / "grafana" / "prometheus" / "rules.yml")
    assert rule["spec"]["groups"] == rules["groups"]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "valid"), [(None, True), ("replica: 9", False)])
def test_the_manifests_are_those_of_the_api(tmp_path, change, valid) -> None:
    given = SERVERS
    if change:
        given = tmp_path / "servers.yaml"
        given.write_text(SERVERS.read_text(encoding="utf-8").replace("replicas: 9", change))
    command = [str(installed("kubernetes-validate")), "--strict", str(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == valid, done.stdout + done.stderr
