"""What the example strategy `local_steps` declares about itself: its name, its one setting, its manners.

In a module of its own, so that launcher and coordinator, which import this, need not wait for torch.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.errors import UsageError
from shoal.manners import Manners
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.codec_settings import CodecSettings
from shoal.settings.strategy_settings import StrategyKind, StrategySettings


class LocalStepsSettings(StrategySettings, frozen=True, kw_only=True, rename="kebab"):
    title: ClassVar[str] = "local steps"

    mean_every: Annotated[int, Meta(description="steps that each worker takes by itself between two means")] = 50

    @property
    def manners(self) -> Manners:
        return Manners(every=self.mean_every)

    def check_values(self) -> None:
        if not 1 <= self.mean_every <= 1_000_000:
            raise UsageError(f"--mean-every is {self.mean_every}; it should be from 1 to 1000000 steps")


LOCAL_STEPS = StrategyKind(
    name="local-steps",
    settings=LocalStepsSettings,
    maker="support.local_steps:make",
    shares=(AllReduceSettings, CodecSettings),  # workers exchange means as all-reduce exchanges gradients
)
