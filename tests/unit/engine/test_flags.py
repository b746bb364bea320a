"""Flags and the tuning file are the configuration record, no more and no less."""

from __future__ import annotations

import argparse
import dataclasses
import pickle
from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.config import (
    TokenFlowConfig,
    build,
    config_of,
    flag_settings,
    tuning_tables,
)
from tokenflow_sgl.engine.flags import add_arguments, attach, config_from
from tokenflow_sgl.engine.moved_flags import MOVED, check_keywords
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.policy import ConfigError, WorkingSetConfig
from tokenflow_sgl.policy.tuning_file import write_tuning
from tokenflow_sgl.qos.classes import SHIPPED, QosClass

FLAGS = list(flag_settings())
IN_FILE = [(table, name) for table, known in tuning_tables().items() for name in known]
NAMES = [*FLAGS, *(name for _, name in IN_FILE if name not in FLAGS)]
ON = ("--scheduler", "tokenflow")


def flag(name: str) -> str:
    return "--tokenflow-" + name.replace("_", "-")


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="sglang")
    made.add_argument("--model-path")
    add_arguments(made)
    return made


@pytest.fixture(autouse=True)
def classes_file(tmp_path, monkeypatch):
    """The files that `OTHER` names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuning.toml").write_text("")
    path = tmp_path / "classes.toml"
    path.write_text('default = "subtitles"\n[classes.subtitles]\nrate = 15\nweight = 2\n')
    return path


@pytest.fixture
def parse(parser):
    def config(*words: str) -> TokenFlowConfig | None:
        return config_from(parser.parse_args(words))

    return config


# A value other than the default for each setting.
OTHER = {
    "tuning": "tuning.toml",
    "policy": "paper",
    "hicache": "off",
    "mixed_chunk": "off",
    "deposit": True,
    "longest_rest": 60.0,
    "max_wait": 5.0,
    "tenant_by": "api-key",
    "thinking": "shown",
    "thinking_rate": 30.0,
    "default_rate": "listening",
    "classes": "classes.toml",
    "lengths": "limit",
    "overtake": 3.0,
    "priority_weight": 3.0,
    "length_caution": 0.6,
    "lengths_file": "lengths.json",
    "decision_log": "decisions.jsonl",
    "block_groups": True,
    "restore": "auto",
    "layerwise": "even",
    "layerwise_ratio": 3.0,
    "admission": "both",
    "eta": 2.0,
    "burst_eta": 3.0,
    "calm": 1.0,
    "cycle": 1.0,
    "hysteresis": 1.0,
    "safety": 1.0,
    "switch_factor": 3.0,
    "min_run": 1.0,
    "band": 0.2,
    "band_seconds": 1.0,
    "urgent": 1.0,
    "prefill_chunk": 512,
    "prefill_guard": 2.0,
    "fill": 0.5,
    "pace": True,
    "write_ahead": False,
    "load_ahead": False,
    "load_chunks": True,
    "unproved_sglang": True,
    "park": False,
    "park_floor": 0.5,
    "park_target": 0.5,
}


def value_of(config: TokenFlowConfig, name: str):
    own = {item.name for item in dataclasses.fields(TokenFlowConfig)}
    return getattr(config if name in own else config.working_set, name)


def words_for(name: str) -> list[str]:
    value = OTHER[name]
    if isinstance(value, bool):
        return [flag(name) if value else flag(name).replace("--", "--no-", 1)]
    return [flag(name), str(value)]


def test_every_field_of_both_records_is_said_in_one_place_at_least() -> None:
    made_otherwise = ("working_set", "known_classes", "check_ranks")
    fields = [f.name for f in dataclasses.fields(TokenFlowConfig) if f.name not in made_otherwise]
    fields += [f.name for f in dataclasses.fields(WorkingSetConfig)]
    assert sorted(fields) == sorted(NAMES)
    both = {name for _, name in IN_FILE} & set(FLAGS)
    assert both == {"eta", "burst_eta", "max_wait"}, (
        "parameters that a search finds, and an operator decides"
    )


def test_an_operator_meets_seventeen_flags_at_most(parser) -> None:
    shown = parser.format_help()
    ours = [each for each in parser._actions if each.help and "default" in each.help]
    assert len(ours) == len(FLAGS) + 1
    assert len(ours) - len({"unproved_sglang"}) <= 17, "that one is for those who port"
    for name in MOVED:
        assert flag(name) not in shown.replace("--tokenflow-lengths-file", "")


def check_only(config: TokenFlowConfig, name: str, *more: str) -> None:
    """That a setting is that of `OTHER`, and every other one as shipped."""
    plain = TokenFlowConfig()
    for other in set(NAMES) - set(more):
        wanted = OTHER[name] if other == name else value_of(plain, other)
        assert value_of(config, other) == wanted
        assert type(value_of(config, other)) is type(value_of(plain, other))


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_reaches_its_field_and_no_other(parse, name) -> None:
    check_only(parse(*ON, *words_for(name)), name)


@pytest.mark.parametrize(("table", "name"), IN_FILE)
def test_every_parameter_of_a_file_reaches_its_field_and_no_other(
    parse, tmp_path, table, name
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(write_tuning({table: {name: OTHER[name]}}))
    config = parse(*ON, flag("tuning"), str(path))
    check_only(config, name, "tuning")
    assert config.tuning == str(path)


def test_a_flag_beats_the_file(parse, tmp_path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[policy]\neta = 0.5\nburst_eta = 0.7\ncycle = 1\n")
    found = parse(*ON, flag("eta"), "0.9", flag("tuning"), str(path)).working_set
    assert (found.eta, found.burst_eta, found.cycle) == (0.9, 0.7, 1.0), "as shipped, if it is said"


def test_the_file_says_what_a_flag_of_before_said(parse, tmp_path) -> None:
    """Bit by bit the same record, so that a simulation and a server are the same, too."""
    path = tmp_path / "own.toml"
    path.write_text(write_tuning({"policy": {"band": 0.1 + 0.2, "hysteresis": 1 / 3}}))
    found = parse(*ON, flag("tuning"), str(path)).working_set
    assert found == WorkingSetConfig(band=float("0.30000000000000004"), hysteresis=1 / 3)


def test_a_file_that_cannot_be_used_stops_the_start(parse, tmp_path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[policy]\neta = 11")
    for there, message in (
        (path, f"tuning file {path}: [policy] eta is 11; allowed is 0.1 to 10"),
        (tmp_path / "none", f"tuning file {tmp_path / 'none'}: No such file or directory"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse(*ON, flag("tuning"), str(there))
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("decision_log", "--tokenflow-decision-log"),
        ("policy", "--tokenflow-policy"),
        ("park", "[policy]"),
    ],
)
def test_what_is_no_parameter_of_the_file_is_refused_with_its_place(
    parse, tmp_path, name, place
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f"[engine]\n{name} = 1")
    with pytest.raises(ConfigError) as caught:
        parse(*ON, flag("tuning"), str(path))
    assert place in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("name", MOVED)
def test_a_flag_that_has_moved_is_refused_with_the_line_to_write(
    parser, parse, tmp_path, name
) -> None:
    words = words_for(name) if name in OTHER else [flag(name)]
    with pytest.raises(SystemExit) as caught:
        parser.parse_args([*ON, *words])
    message = str(caught.value.code)
    assert message.startswith(f"tokenflow: {words[0]} has ")
    if MOVED[name].table:  # what is said is what does it
        line, table = message.partition(": write ")[2].split(" in a file for ")[0].split(" below ")
        (tmp_path / "own.toml").write_text(f"{table}\n{line}\n")
        check_only(parse(*ON, flag("tuning"), "own.toml"), name, "tuning")
    with pytest.raises(ConfigError) as told:
        check_keywords({name: OTHER.get(name, True)})
    assert str(told.value).startswith(f"tokenflow_{name} has ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokenflow-swi", "3"], "--tokenflow-switch-factor has moved: write switch_factor = 3 "),
        (["--tokenflow-switch-factor=4"], "write switch_factor = 4 below [policy] in a file"),
        (["--no-tokenflow-pac"], "--no-tokenflow-pace has moved: write pace = false below"),
        (["--tokenflow-park", "true"], "write park = true below"),
        (["--tokenflow-prefill-chunk"], "write prefill_chunk = 2048 below"),
        (["--tokenflow-lengths", "limit"], 'write lengths = "limit" below [engine] in a file for'),
    ],
)
def test_each_spelling_of_a_flag_that_has_moved_is_refused(parser, words, said) -> None:
    for more in ((), ON):
        with pytest.raises(SystemExit) as caught:
            parser.parse_args([*words, *more])
        assert said in str(caught.value.code)


def test_ranks_are_checked_by_the_environment(parse, monkeypatch) -> None:
    for said, checked in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("TOKENFLOW_CHECK_RANKS", said)
        config = parse(*ON)
        monkeypatch.delenv("TOKENFLOW_CHECK_RANKS")
        assert pickle.loads(pickle.dumps(config)).check_ranks is checked, "in other processes, too"
    monkeypatch.setenv("TOKENFLOW_CHECK_RANKS", "yes")
    with pytest.raises(ConfigError, match=r"^TOKENFLOW_CHECK_RANKS is 'yes'; allowed is 0 or 1$"):
        parse(*ON)


def test_defaults_are_absent_so_that_only_given_values_count(parser) -> None:
    given = vars(parser.parse_args([]))
    assert given.pop("scheduler") == "default"
    assert given.pop("model_path") is None
    assert given == {f"tokenflow_{name}": None for name in FLAGS}


def test_the_scheduler_alone_gives_the_defaults(parse) -> None:
    assert parse(*ON) == TokenFlowConfig()


def test_without_the_scheduler_there_is_no_configuration(parse) -> None:
    assert parse() is None
    assert parse("--tokenflow-eta", "2") is None
    assert parse("--scheduler", "default") is None
    assert config_from(argparse.Namespace()) is None


def test_an_unknown_scheduler_is_refused(parse, capsys) -> None:
    with pytest.raises(SystemExit):
        parse("--scheduler", "magic")
    assert "invalid choice: 'magic'" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "item"), flag_settings().items(), ids=FLAGS)
def test_help_shows_every_flag_with_its_text_and_default(parser, name, item) -> None:
    assert len(item.metadata["help"].split()) > 4
    shown = "".join(parser.format_help().split())
    assert flag(name) in shown
    assert "".join(item.metadata["help"].split()) in shown
    assert f"(default:{item.default})" in shown


def test_a_file_of_classes_adds_to_the_shipped_ones(parse, classes_file) -> None:
    config = parse(*ON, *words_for("classes"))
    assert config.known_classes.known["subtitles"] == QosClass("subtitles", 15.0, weight=2.0)
    assert config.known_classes.known["agent"] == SHIPPED["agent"]
    assert config.known_classes.default.rate == 15.0


def test_the_default_on_the_command_line_is_not_the_files(parse, classes_file) -> None:
    config = parse(*ON, *words_for("classes"), flag("default_rate"), "listening")
    assert config.known_classes.default == QosClass("default", 5.0)
    assert parse(*ON, flag("default_rate"), "7.5").known_classes.default.rate == 7.5
    assert parse(*ON).known_classes.default.rate == 10.0


def test_a_bad_file_of_classes_stops_the_start(parse, tmp_path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[classes.voice]\nrate = 0")
    with pytest.raises(ConfigError) as caught:
        parse(*ON, flag("classes"), str(path))
    assert str(caught.value) == (
        f"classes: class file {path}: class voice: rate is 0; allowed is a number from 0.1 to 1000 "
        "tokens per second"
    )


def test_the_file_is_read_once_and_rides_on_the_record(parse, classes_file) -> None:
    config = parse(*ON, *words_for("classes"))
    classes_file.unlink()
    there = pickle.loads(pickle.dumps(config))
    assert there == config
    assert there.known_classes == config.known_classes


@pytest.mark.parametrize("rate", ["fast", "nan "])
def test_a_default_rate_that_is_none_is_refused(parse, rate) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*ON, f"{flag('default_rate')}={rate}")
    assert str(caught.value).startswith("default_rate is ")
    assert "allowed is a" in str(caught.value)


@pytest.mark.parametrize("rate", ["0", "-1", "1e9", "inf"])
def test_a_default_rate_out_of_range_is_refused(parse, rate) -> None:
    with pytest.raises(ConfigError, match=r"a number from 0\.1 to 1000 tokens per second"):
        parse(*ON, f"{flag('default_rate')}={rate}")


def test_a_default_rate_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^default_rate is "):
        build({"default_rate": "1e9"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eta", "11", "eta is 11.0; allowed is 0.1 to 10"),
        ("eta", "nan", "eta is nan; allowed is 0.1 to 10"),
        ("layerwise_ratio", "0", "layerwise_ratio is 0.0; allowed is 1 to 1024"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(parse, name, value, message) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*ON, flag(name), value)
    assert str(caught.value).startswith(message)


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        build({"eta": 1.0, "etta": 2.0})
    message = str(caught.value)
    assert message.startswith("unknown setting tokenflow_etta; allowed are ")
    for name in FLAGS:
        assert f"tokenflow_{name}" in message


def test_the_nested_record_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="unknown setting tokenflow_working_set;"):
        build({"working_set": WorkingSetConfig()})


def test_hicache_is_one_of_its_choices() -> None:
    with pytest.raises(ConfigError, match=r"^hicache is 'on'; allowed is auto or off$"):
        build({"hicache": "on"})


# ---- on SGLang's record -------------------------------------------------------------


def test_the_configuration_rides_on_the_server_args() -> None:
    args = SimpleNamespace(enable_hierarchical_cache=False)
    assert config_of(args) is None
    config = TokenFlowConfig()
    attach(args, config)
    assert config_of(args) is config


@pytest.mark.parametrize(
    ("hicache", "before", "after"),
    [("auto", False, True), ("auto", True, True), ("off", False, False), ("off", True, True)],
)
def test_hicache_is_switched_on_but_never_off(hicache, before, after) -> None:
    args = SimpleNamespace(enable_hierarchical_cache=before)
    attach(args, build({"hicache": hicache}))
    assert args.enable_hierarchical_cache is after


def test_contiguous_copies_need_something_to_copy() -> None:
    asked = build({"hicache": "off", "block_groups": True})
    with pytest.raises(
        UnsupportedError, match=r"^block_groups \(--tokenflow-tuning\) does not work with .*;"
    ):
        attach(SimpleNamespace(enable_hierarchical_cache=False), asked)
    for args, config in (
        (SimpleNamespace(enable_hierarchical_cache=True), asked),
        (SimpleNamespace(enable_hierarchical_cache=False), build({"block_groups": True})),
    ):
        attach(args, config)
        assert config_of(args) is config


def test_excluded_options_leave_the_record_untouched() -> None:
    args = SimpleNamespace(enable_hierarchical_cache=False, pp_size=2)
    with pytest.raises(UnsupportedError, match="--pp-size 2"):
        attach(args, TokenFlowConfig())
    assert vars(args) == {"enable_hierarchical_cache": False, "pp_size": 2}


def test_a_decision_log_needs_a_folder(tmp_path) -> None:
    assert TokenFlowConfig(decision_log=str(tmp_path / "log")).decision_log.endswith("log")
    wanted = str(tmp_path / "none" / "log")
    with pytest.raises(ConfigError) as caught:
        TokenFlowConfig(decision_log=wanted)
    assert str(caught.value) == (
        f"decision_log is {wanted!r}; allowed is a file in a folder that exists"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"policy": "nonsense"}, r"^policy is 'nonsense'; allowed is working-set, .* or package"),
        ({"policy": "no_such:Policy"}, r"^policy 'no_such:Policy' cannot be loaded: No module"),
        ({"policy": "json:Policy"}, r"^policy 'json:Policy' cannot be loaded: module 'json' has"),
        ({"lengths": "guess"}, r"^lengths is 'guess'; allowed is learned, limit or package"),
        ({"lengths": "json:JSONDecoder"}, r"cannot be loaded: it has no method kind"),
    ],
)
def test_what_cannot_be_loaded_is_refused_at_the_start(setting, message) -> None:
    config = build(setting)  # every process of the server does this, and loads nothing
    with pytest.raises(ConfigError, match=message):
        attach(SimpleNamespace(enable_hierarchical_cache=False), config)
