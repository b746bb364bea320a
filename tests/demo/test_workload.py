from dataclasses import replace

from tokenflow_sgl.demo.workload import BurstConfig, make_burst, make_warm_up


def test_burst_keeps_to_its_config():
    config = BurstConfig()
    burst = make_burst(config)
    assert len(burst) == config.readers
    for request in burst:
        assert config.prompt_tokens[0] <= len(request.prompt_ids) <= config.prompt_tokens[1]
        assert config.output_tokens[0] <= request.max_new_tokens <= config.output_tokens[1]
        assert config.rate[0] <= request.rate <= config.rate[1]
        assert 0 <= request.send_at_s <= config.span_s
        assert all(
            config.token_ids[0] <= token < config.token_ids[1] for token in request.prompt_ids
        )
    assert [request.send_at_s for request in burst] == sorted(r.send_at_s for r in burst)


def test_equal_seeds_give_equal_bursts_and_other_seeds_others():
    config = BurstConfig()
    assert make_burst(config) == make_burst(config)
    assert make_burst(config) != make_burst(replace(config, seed=1))


def test_warm_up_shares_no_prompt_with_any_burst():
    config = BurstConfig()
    warm = {request.prompt_ids for request in make_warm_up(config)}
    for seed in range(5):
        burst = {request.prompt_ids for request in make_burst(replace(config, seed=seed))}
        assert not warm & burst
