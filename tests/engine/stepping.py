"""Steps of an engine, told choice by choice as a client would hear them."""

from weakref import WeakKeyDictionary

from jaxinfer.engine.client.sequence_ids import Choices
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import TokenDelta

_CHOICES: WeakKeyDictionary[EngineCore, Choices] = WeakKeyDictionary()


def step_deltas(core: EngineCore) -> list[TokenDelta]:
    """One call of `step`, and what it gave. All steps of an engine must be taken this way for tokens to have names."""
    return _CHOICES.setdefault(core, Choices()).expand(core.step())
