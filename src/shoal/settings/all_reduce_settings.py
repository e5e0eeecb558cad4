"""Settings of the all-reduce strategy: how workers exchange tensors with each other. Pure."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.codec_settings import CodecSettings
from shoal.settings.kind_settings import AllSettings
from shoal.settings.setting_checks import one_of
from shoal.settings.strategy_settings import StrategyKind, StrategySettings

SCHEDULES = ("auto", "ring", "tree", "double-tree", "halving-doubling", "hierarchical", "chain")
CARRIERS = ("shoal", "gloo", "nccl", "mpi")
REFUSED = ("schedule", "carrier")  # by strategies without these settings; they ignore the other ones


class AllReduceSettings(StrategySettings, frozen=True, kw_only=True, rename="kebab"):
    title: ClassVar[str] = "all-reduce"

    schedule: Annotated[
        str,
        Meta(
            description="who sends what to whom: auto (chosen from measured links), ring, tree, double-tree, "
            "halving-doubling, hierarchical or chain"
        ),
    ] = "auto"
    deterministic: Annotated[
        bool,
        Meta(description="measure no links; sum in the order of the ranks, for the same bits wherever the workers are"),
    ] = False
    carrier: Annotated[
        str, Meta(description="what moves tensors: shoal (shared memory and TCP), or the library gloo, nccl or mpi")
    ] = "shoal"
    bucket_mb: Annotated[
        float,
        Meta(
            description="gradients travel in groups of at most about this many MB, eight times that on a GPU; between "
            "machines in smaller ones, where measured links are worth it"
        ),
    ] = 4.0

    def check_values(self) -> None:
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("carrier", self.carrier, CARRIERS)
        if not 0 < self.bucket_mb <= 1024:
            raise UsageError(texts.bad_bucket_mb(self.bucket_mb))

    def check_together(self, job: AllSettings) -> None:
        codec = job.of(CodecSettings).codec
        if self.carrier != "shoal" and (self.schedule, codec) != ("auto", "identity"):
            raise UsageError(texts.carrier_has_own_schedules(self.carrier, self.schedule, codec))

    def check_unused(self, chosen: str) -> None:
        for name in (name for name in self.changed() if name in REFUSED):
            raise UsageError(texts.workers_exchange_nothing(self.given(name), chosen))


ALL_REDUCE = StrategyKind(
    name="all-reduce",
    settings=AllReduceSettings,
    maker="shoal.strategies.all_reduce.all_reduce:make",
    shares=(CodecSettings,),
)
