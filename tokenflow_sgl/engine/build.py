"""Builds the core of our scheduler, and what is beside it: the only place where parts meet."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.runtime_context import get_parallel

from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.admission import PolicedAdmission
from tokenflow_sgl.engine.agreement import Agreement
from tokenflow_sgl.engine.body.unified import StreamMemory, UnifiedBody
from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.config import TokenFlowConfig, config_of
from tokenflow_sgl.engine.core import Core, Meters
from tokenflow_sgl.engine.drafts import Drafts
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.features import features_on
from tokenflow_sgl.engine.kv.device_pools import DevicePools
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.kv.write import Writer
from tokenflow_sgl.engine.launch_lag import launch_lag
from tokenflow_sgl.engine.layerwise_settings import layerwise_of
from tokenflow_sgl.engine.lengths_file import known_lengths, open_lengths_file
from tokenflow_sgl.engine.model_kinds import check_model, kind_of_model
from tokenflow_sgl.engine.ranks import decides_alone, place_in_group
from tokenflow_sgl.engine.reasoning import Reasoning
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.shared_clock import SharedClock, local_time
from tokenflow_sgl.engine.telemetry.decision_log import DecisionListener, open_log
from tokenflow_sgl.engine.telemetry.headroom_watch import HeadroomWatch
from tokenflow_sgl.engine.telemetry.prometheus import Recorder, recorder_of
from tokenflow_sgl.engine.telemetry.sampling import SAMPLE_SECONDS, DeliveryReporter, Effort
from tokenflow_sgl.engine.tenant_setting import TENANTS_OFF
from tokenflow_sgl.engine.view import View
from tokenflow_sgl.lifecycle import Decider
from tokenflow_sgl.lifecycle.door import LOOK_EVERY
from tokenflow_sgl.lifecycle.live_tenants import LiveTenants
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy import make_policy

logger = logging.getLogger(__name__)


def build_core(scheduler: LiveScheduler) -> Core:
    """The core of a scheduler of SGLang's that has its memory, and the extensions beside it.

    Raises:
        UnsupportedError: SGLang has found a model, or pools, that are not served.
    """
    config = config_of(scheduler.server_args)
    assert config is not None, "this scheduler is only put in place with a configuration"
    check_model(**kind_of_model(scheduler.model_config))
    ranks, recorder, extensions = get_parallel(), recorder_of(scheduler), Extensions()
    lengths = known_lengths(scheduler.server_args, config, ranks.dp_rank)
    reasoning = Reasoning(scheduler.model_config, scheduler.tokenizer, config.thinking)
    table: StreamTable[Any] = StreamTable(lengths, reasoning=reasoning.tokens)
    table.rests.longest = config.longest_rest
    if config.tenant_by != TENANTS_OFF:
        table.tenants = LiveTenants(config.known_classes)
    book = Book(
        scheduler, table, SharedClock(), decides_alone(ranks), config.known_classes, reasoning
    )
    drafts = Drafts(scheduler)
    timer, effort = StepTimer(lag=launch_lag(scheduler), most=drafts.most), Effort()
    body = body_of(scheduler, book, recorder, extensions, drafts)
    log = open_log(config.decision_log, ranks, table.request, recorder)
    policy = make_policy(config.policy, config.working_set)
    listener = DecisionListener(recorder, log)
    core = Core(
        scheduler=scheduler,
        book=book,
        body=body,
        decider=Decider(policy, config.policy, table.phases, listener),
        view=View(scheduler, book, body, timer),
        gate=PolicedAdmission(scheduler, body, config),
        meters=Meters(
            recorder,
            timer,
            effort,
            DeliveryReporter(table, recorder, timer, effort),
            HeadroomWatch(config.working_set, recorder, look_every(config)),
        ),
        drafts=drafts,
        extensions=extensions,
        agreement=Agreement(place_in_group(ranks)) if config.check_ranks else None,
        lengths_file=open_lengths_file(config.lengths_file, ranks, lengths, local_time()),
        log=log,
    )
    for feature in features_on(scheduler.server_args):
        extensions.add(feature.build(core))
    logger.info(
        "tokenflow scheduler is on: policy %s, HiCache %s, default rate %g tokens/s",
        config.policy,
        "on" if scheduler.enable_hierarchical_cache else body.without_hicache,
        config.known_classes.default.rate,
    )
    return core


def look_every(config: TokenFlowConfig) -> float:
    """Seconds between two looks: fewer where the server refuses requests by what it sees."""
    classes = [*config.known_classes.known.values(), config.known_classes.default]
    refuses = config.working_set.max_wait or any(each.max_wait for each in classes)
    return LOOK_EVERY if refuses else SAMPLE_SECONDS


def body_of(
    scheduler: LiveScheduler, book: Book, recorder: Recorder, extensions: Extensions, drafts: Drafts
) -> UnifiedBody:
    """The body of this kind of server."""
    tree, table, args = scheduler.tree_cache, book.table, scheduler.server_args
    # A paused stream's last tokens are loaded, too: that is what a resume is promised to cost.
    if scheduler.enable_hierarchical_cache:
        tree.load_back_threshold = 1
    pools = DevicePools(scheduler, drafts.most)
    writer = Writer(tree, table, recorder, scheduler.page_size)
    watch = TransferWatch(tree.cache_controller, recorder)
    memory = StreamMemory(pools, writer, Loader(tree), watch)
    if layerwise_of(args) is not None:
        from tokenflow_sgl.engine.body.placed import placed_body

        return placed_body(scheduler, book, memory, extensions, recorder)
    if args.disaggregation_mode == "decode":
        from tokenflow_sgl.engine.body.decode import decode_body

        return decode_body(scheduler, book, memory, extensions, recorder)
    pauser = Pauser(tree, writer.released, book.pauses)
    return UnifiedBody(scheduler, book, memory, pauser, extensions, recorder)
