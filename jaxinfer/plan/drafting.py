"""Who drafts on a mesh: what a draft model or a head takes of a device, and how much drafts give."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxinfer.build.sized import Sized
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.eagle3 import Eagle3Config
from jaxinfer.plan.work import DeviceModel, ShardRows, device_head, device_model
from jaxinfer.quantization.array import held_bytes
from jaxinfer.runner.drafting.drafter import READ_AGAIN
from jaxinfer.runner.step.draft_model import followed_group
from jaxinfer.runner.step.features import feature_shapes
from jaxinfer.speculation import Speculation


class Assumed(NamedTuple):
    """config: of the draft model or head; None of n-grams. acceptance: of drafts that come after kept ones, how many
    are kept, 0 to 1."""

    config: DecoderConfig | Eagle3Config | None
    acceptance: float


@dataclass(frozen=True)
class DraftPlan:
    """speculation: who drafts, and how many tokens. acceptance: as in `Assumed`. model: what drafts, as one device has
    it; None of n-grams, which are reckoned to take no time. group: KV group of the target with each of whose blocks
    goes one of every group of the model. features: bytes of hidden states that are kept for a head."""

    speculation: Speculation
    acceptance: float
    model: DeviceModel | None
    group: int
    features: int

    @property
    def weight_bytes(self) -> int:
        return 0 if self.model is None else self.model.weight_bytes

    @property
    def tokens(self) -> float:
        """The tokens that a row gets on average from a step that drafts."""
        return sum(self.acceptance**place for place in range(self.speculation.tokens + 1))

    def passes(self, rows: ShardRows) -> tuple[tuple[int, ShardRows], ...]:
        """Return the draft model's passes of a step: how often, and over which rows. The first reads all that is new to
        the model. rows: of decode."""
        first = rows._replace(tokens=READ_AGAIN, scored=1)
        return (1, first), (self.speculation.tokens - 1, first._replace(tokens=1))

    def with_kv(self, kv_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """Bytes of a token in the target's KV groups, with those of the model."""
        own = 0 if self.model is None else sum(self.model.kv_bytes)
        return tuple(size + own * (group == self.group) for group, size in enumerate(kv_bytes))


def draft_plan(assumed: Assumed, target: Sized) -> DraftPlan:
    """target: whose shapes say who drafts. Raises ParameterError where what drafts cannot be split over the mesh."""
    shapes, place = target.shapes, (target.dtype, target.platform, target.mesh)
    assert shapes.drafting is not None
    model, features = None, 0
    if isinstance(assumed.config, Eagle3Config):
        model = device_head(assumed.config, *place)
        kept = feature_shapes(model.config.hidden_size, target.dtype, replace(shapes, shards=1))
        features = sum(held_bytes(one.shape, one.dtype, target.platform) for one in kept)
    elif assumed.config is not None:
        model = device_model(assumed.config, *place)
    return DraftPlan(shapes.drafting, assumed.acceptance, model, followed_group(target.decoder), features)
