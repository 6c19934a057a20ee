"""A simulated device whose steps take a set time, and which draws tokens that grammars allow, at next to no cost."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.calls import InitSlots, SetMasks, Write
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import WORD_BITS, EngineShapes, KVGroup
from jaxinfer.engine.types import ModelInfo
from jaxinfer.grammar.grammars import Grammars

BLOCK, CONTEXT, END = 16, 4096, 0
QUOTES_PER_TOKEN = 1 / 8
"""Probability of the token of a quotation mark when it may be drawn: strings have so many tokens."""


class LegalRunner(SimulatedRunner):
    """Draws any token of a row's mask; a mask that nobody has sent allows all. quote: the token of `"`."""

    def __init__(self, shapes: EngineShapes, seconds: float, quote: int):
        super().__init__(shapes, step_seconds=seconds, draws=False)
        self._layouts_of = Layouts(shapes)
        self._current = np.full((shapes.num_slots, shapes.mask_words), -1, np.int32)
        self._masked = np.zeros(shapes.num_slots, bool)
        self._random, self._quote = np.random.default_rng(0), quote
        self._drawn: list[np.ndarray] = []

    def write(self, call: Write) -> None:
        """Keep masks here; the device would only copy them. A slot's one place has its number: nothing drafts."""
        match call:
            case SetMasks(packed):
                view = self._layouts_of.masks(packed.bucket).views(packed.array)
                self._current[view["places"]] = view["masks"]
                self._masked[view["places"]] = True
            case InitSlots(packed):  # a slot is nobody's with a mask until one is sent
                self._masked[self._layouts_of.admit.views(packed)["slot"]] = False
                super().write(call)
            case _:
                super().write(call)

    def finish(self, step: PackedStep, begun: float, counts: np.ndarray | None):
        """Draws from the masks as they are now."""
        self._drawn.append(self._draw(self._sampling_slots(step)))
        return super().finish(step, begun, counts)

    def collect(self, index: int) -> StepResult:
        """Return the step's result with the tokens that were drawn."""
        result, tokens = super().collect(index), self._drawn.pop(0)
        return result._replace(tokens=tokens[: len(result.tokens), None])

    def _sampling_slots(self, step: PackedStep) -> np.ndarray:
        """Return the sampling slots of rows, in order; rows that draw nothing get a token, too, which nobody reads."""
        layout = self._layouts_of.decode if step.kind is StepKind.DECODE else self._layouts_of.mixed
        return layout(step.bucket).views(step.array)["slots"][: step.num_rows]

    def _draw(self, slots: np.ndarray) -> np.ndarray:
        """A token a slot: of a random word the first bit from a random one on."""
        vocabulary, masked = self.shapes.vocab_size, self._masked[slots]
        tokens = self._random.integers(20, vocabulary, len(slots)).astype(np.int32)
        tokens[masked] = [self._legal(slot) for slot in slots[masked]]
        return tokens

    def _legal(self, slot: int) -> int:
        words = self._current[slot].view(np.uint32)
        at, shift = int(self._random.integers(len(words))), int(self._random.integers(WORD_BITS))
        if self._allows(words, self._quote) and self._random.random() < QUOTES_PER_TOKEN:
            return self._quote
        if not words[at]:
            some = np.flatnonzero(words)
            at = int(some[at % len(some)])
        word = int(words[at])
        turned = (word >> shift | word << WORD_BITS - shift) & (1 << WORD_BITS) - 1
        return WORD_BITS * at + ((turned & -turned).bit_length() - 1 + shift) % WORD_BITS

    @staticmethod
    def _allows(words: np.ndarray, token: int) -> bool:
        return bool(int(words[token // WORD_BITS]) >> token % WORD_BITS & 1)


def make_core(tokenizer: Path, rows: int, seconds: float) -> EngineCore:
    """An engine of `rows` slots with the grammars of a tokenizer, whose vocabulary is the model's."""
    known = Tokenizer.from_file(str(tokenizer))
    size, quote, blocks = known.get_vocab_size(), known.token_to_id('"'), 1 + rows * CONTEXT // BLOCK
    assert quote is not None
    shapes = EngineShapes(rows, max(512, rows), rows, CONTEXT, BLOCK, (KVGroup(None, blocks),), size)
    info = ModelInfo("demo", CONTEXT, size, rows, BLOCK, blocks)
    config = SchedulerConfig(max_num_seqs=rows, max_waiting=4 * rows)
    runner = LegalRunner(shapes, seconds, quote)
    return EngineCore(runner, info, scheduler=config, constraints=Grammars(tokenizer, size, (END,)), eos_ids=(END,))
