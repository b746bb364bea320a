"""Tables of tenants in the class file."""

from __future__ import annotations

import pytest

from tokenflow_sgl.qos.classes import UNNAMED, ClassError, Tenant, load_classes


def test_tenants_are_granted_what_the_file_says(tmp_path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(
        "[tenants.gold]\nweight = 3\nstreams = 2\nrests = 0\nrate = 50\n"
        "[tenants.'a key']\n[tenants.others]\nstreams = 9\n"
    )
    found = load_classes(path)
    assert found.tenant("gold") == Tenant("gold", 3.0, streams=2, rests=0, rate=50.0)
    assert found.tenant("a key") == Tenant("a key")
    assert found.tenant("any other") == Tenant("others", streams=9)
    path.write_text("[classes.chat]\nrate = 20\n")
    assert load_classes(path).tenant("gold") == UNNAMED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("weight = 0", "tenant gold: weight is 0; allowed is a number from 0.01 to 100"),
        ("weight = nan", "weight is nan; allowed"),
        ("streams = 0", "streams is 0; allowed is a whole number from 1 to 1000000"),
        ("streams = 1.5", "streams is 1.5; allowed"),
        ("rests = -1", "rests is -1; allowed is a whole number from 0"),
        ("rate = 1e6", "rate is 1000000.0; allowed is a number from 0.1 to 1000"),
        ("share = 1", "the field 'share' is unknown; allowed are weight, streams, rests, rate"),
    ],
)
def test_a_bad_grant_is_refused(tmp_path, text, said) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(f"[tenants.gold]\n{text}\n")
    with pytest.raises(ClassError, match="tenant gold: ") as caught:
        load_classes(path)
    assert said in str(caught.value)
