"""Steps of an engine, told sequence by sequence as a client would hear them."""

from weakref import WeakKeyDictionary

from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import TokenDelta

_SEQUENCE_IDS: WeakKeyDictionary[EngineCore, SequenceIds] = WeakKeyDictionary()


def step_deltas(core: EngineCore) -> list[TokenDelta]:
    """One call of `step`, and what it gave. All steps of an engine must be taken this way for tokens to have names."""
    return _SEQUENCE_IDS.setdefault(core, SequenceIds()).expand(core.step())
