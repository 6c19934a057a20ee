"""SimulatedShard: slots and KV blocks of one shard of a simulated device, and its programs over them."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.engine.device.first_stage import FirstStage, KnownNewest
from jaxinfer.engine.step.layouts import NEWEST, SLOT_PARAMS, Layouts
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.step.shapes import WORD_BITS, EngineShapes
from jaxinfer.sampling import MAX_STOP_TOKEN_IDS

_NEVER_WRITTEN = -(2**20)


def draw(visible: Sequence[np.ndarray], position: int, seed: int, index: int, allowed: int) -> int:
    """Return which of `allowed` tokens follows `position`, from the tokens that each KV group sees up to there."""
    mask = (1 << 64) - 1
    state = (seed * 1_000_003 + index * 7_919 + position) & mask
    for tokens in visible:
        weights = np.arange(len(tokens), 0, -1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        content = int(((tokens.astype(np.uint64) + np.uint64(1)) * weights).sum())
        state = (state * 0xD1342543DE82EF95 + content) & mask
        state ^= state >> 29
    return state % allowed


class SimulatedShard:
    """Arrays in place of KV blocks and slot state. Its programs take a shard's section of a packed step.

    hit_rate: how often a draft is what its position draws.
    """

    def __init__(self, shapes: EngineShapes, layouts: Layouts, hit_rate: float = 0.0):
        self.shapes = shapes
        self._hit_rate, self._random = hit_rate, np.random.default_rng(0)
        self._layouts = layouts
        slots, width = shapes.num_slots, shapes.blocks_per_row
        self.kv = [np.full((g.num_blocks, shapes.block_size), _NEVER_WRITTEN, np.int64) for g in shapes.groups]
        self.tables = np.zeros((len(shapes.groups), slots, width), np.int32)
        self.length = np.zeros(slots, np.int32)
        self.last_token = np.zeros(slots, np.int32)
        self._first = FirstStage(slots) if shapes.stages > 1 else None
        self._seed = np.zeros(slots, np.int64)
        self._sequence_index = np.zeros(slots, np.int64)
        self._stop_ids = np.full((slots, MAX_STOP_TOKEN_IDS), -1, np.int32)
        self._constrained = np.zeros(slots, bool)
        self._predicted = np.zeros(slots, np.int32)
        self._masks = np.zeros((slots * shapes.slot_masks, shapes.mask_words), np.int32)

    def init_slots(self, packed: np.ndarray) -> None:
        """Initialise slots. packed: laid out as `Layouts.admit`."""
        view = self._layouts.admit.views(packed)
        slots = view["slot"]
        newest, params = NEWEST.views(view["newest"]), SLOT_PARAMS.views(view["params"])
        self.length[slots] = newest["length"]
        self.last_token[slots] = newest["last_token"]
        if self._first is not None:
            self._first.admit(slots, KnownNewest(newest["length"], newest["last_token"]))
        self._seed[slots] = (params["seed_high"].astype(np.int64) << 32) | (
            params["seed_low"].astype(np.int64) & 0xFFFFFFFF
        )
        self._sequence_index[slots] = params["sequence_index"]
        self._stop_ids[slots] = params["stop_ids"]
        self._constrained[slots] = params["constrained"]
        self._predicted[slots] = params["predicted"]
        self.tables[:, slots] = view["tables"]

    def set_masks(self, bucket: int, packed: np.ndarray) -> None:
        """Write masks. packed: laid out as `Layouts.masks`."""
        view = self._layouts.masks(bucket).views(packed)
        self._masks[view["places"]] = view["masks"]

    def copy_blocks(self, packed: np.ndarray) -> None:
        """Copy KV blocks. packed: laid out as `Layouts.copies`."""
        for kv, copies in zip(self.kv, self._layouts.copies.views(packed)["copies"], strict=True):
            source, destination = copies.T
            kv[destination] = kv[source]

    def forward(self, step: PackedStep, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens drawn, and targets, an entry a scored position and its padding. packed: the shard's section."""
        compute = self._decode if step.kind is StepKind.DECODE else self._mixed
        drawn = compute(step.bucket, packed, step.needs)
        if self._first is not None:
            self._first.feed(step.index, self._newest)
        return drawn

    @property
    def _newest(self) -> KnownNewest:
        return KnownNewest(self.length, self.last_token)

    def _held(self, view: dict[str, np.ndarray], rows: int, needs: int) -> KnownNewest:
        """Return the newest tokens of a step's first rows. The host sends positions to stages, unless rows draft: then
        nobody knows them in advance."""
        slots = view["slots"][:rows]
        if self._first is None:
            return self._newest.of(slots)
        known = self._first.newest(slots, view["drawn"][:rows], needs)
        return known if self.shapes.row_tokens > 1 else known._replace(position=view["starts"][:rows])

    def _decode(self, bucket: int, packed: np.ndarray, needs: int) -> tuple[np.ndarray, np.ndarray]:
        view = self._layouts.decode(bucket).views(packed)
        slots = view["slots"]
        self._update_tables(view)
        positions, tokens = self._held(view, bucket, needs)
        self._write(slots, positions, tokens)
        tokens = np.array([self._draw(slot, position) for slot, position in zip(slots, positions, strict=True)])
        return tokens.astype(np.int32), np.full(bucket, -1, np.int32)

    def multi_token(
        self, step: PackedStep, packed: np.ndarray, legal: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Tokens [rows, steps] and counts [rows]; of a step that drafts drafts, accepted ones, and 1 where they come
        from a prediction [rows], too: all drafts of a row that has one. packed: the shard's section. legal: [rows],
        drafts that may be kept; None: all of them."""
        if step.kind is StepKind.MULTI_STEP:
            return self._multi_token(step.bucket, packed, None)
        if self._first is None:
            return self._speculate(step.bucket, packed, legal)
        view = self._layouts.multi_token(step.bucket).views(packed)
        known = self._held(view, step.bucket, step.needs)
        self.length[view["slots"]], self.last_token[view["slots"]] = known  # what drafts begin with
        given = self._speculate(step.bucket, packed, legal)
        self._first.feed(step.index, self._newest)
        return given

    def _speculate(self, bucket: int, packed: np.ndarray, legal: np.ndarray | None) -> tuple[np.ndarray, ...]:
        size = (bucket, self.shapes.row_tokens - 1)
        drafts, hits = (self._random.random(size) < rate for rate in (0.8, self._hit_rate))
        view = self._layouts.multi_token(bucket).views(packed)
        most, has_prediction = view["counts"], self._predicted[view["slots"]] > 0
        drafted = np.minimum(np.cumprod(drafts, axis=1).sum(axis=1), np.maximum(most - 1, 0))
        drafted = drafted if legal is None else np.minimum(drafted, legal)
        kept = np.minimum(np.cumprod(hits, axis=1).sum(axis=1), drafted)
        self._write_drafts(bucket, packed, drafted)
        tokens, counts = self._multi_token(bucket, packed, kept + 1)
        columns = (drafted, np.minimum(kept, counts), has_prediction & (drafted > 0))
        return tokens, counts, *(column.astype(np.int32) for column in columns)

    def _write_drafts(self, bucket: int, packed: np.ndarray, drafted: np.ndarray) -> None:
        """Write an unusable value for each draft, kept or not: computing drafts writes KV."""
        view = self._layouts.multi_token(bucket).views(packed)
        slots, starts = view["slots"], self.length[view["slots"]]
        self._update_tables(view)
        for step in range(1, drafted.max(initial=0) + 1):
            rows = drafted >= step
            self._write(slots[rows], starts[rows] + step, np.full(np.count_nonzero(rows), _NEVER_WRITTEN))

    def _multi_token(self, bucket: int, packed: np.ndarray, kept: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """kept: tokens that each row gets at most; None: as many as are planned."""
        view = self._layouts.multi_token(bucket).views(packed)
        slots, most = view["slots"], view["counts"] if kept is None else np.minimum(view["counts"], kept)
        tokens, counts = np.zeros((len(slots), self.shapes.row_tokens), np.int32), np.zeros(len(slots), np.int32)
        self._update_tables(view)
        left = most > 0
        for at in range(most.max(initial=0)):
            open_slots = np.where(left, slots, self.shapes.scratch_slot)
            self._write(open_slots, self.length[open_slots], self.last_token[open_slots])
            for row in np.flatnonzero(left).tolist():
                token = self._draw(slots[row], int(self.length[slots[row]]))
                tokens[row, at], counts[row] = token, at + 1
                left[row] = at + 1 < most[row] and token not in self._stop_ids[slots[row]]
        return tokens, counts

    def _mixed(self, bucket: int, packed: np.ndarray, needs: int) -> tuple[np.ndarray, np.ndarray]:
        view = self._layouts.mixed(bucket).views(packed)
        held = int(view["num_decode"][0])
        slots, starts, counts = view["slots"], view["starts"].copy(), view["counts"]
        starts[:held], newest = self._held(view, held, needs)
        row = np.repeat(np.arange(len(slots)), counts)
        first = np.cumsum(counts) - counts
        positions = starts[row] + np.arange(len(row)) - first[row]
        tokens = view["tokens"][: len(row)].copy()
        tokens[:held] = newest
        self._update_tables(view)
        self._write(slots[row], positions, tokens)
        drawn = np.zeros(len(view["draws"]), np.int32)
        for i in np.flatnonzero(view["draws"]):
            drawn[i] = self._draw(slots[view["scored_row"][i]], positions[view["scored_token"][i]])
        return drawn, view["targets"]

    def _update_tables(self, view: dict[str, np.ndarray]) -> None:
        for group, table in enumerate(self.tables):
            slot, index, block = view["updates"][group].T
            table[slot, index] = block

    def _write(self, slots: np.ndarray, positions: np.ndarray, tokens: np.ndarray) -> None:
        size = self.shapes.block_size
        for table, kv in zip(self.tables, self.kv, strict=True):
            kv[table[slots, positions // size], positions % size] = tokens

    def _draw(self, slot: int, position: int) -> int:
        if slot == self.shapes.scratch_slot:
            return 0
        visible = [self._read(group, slot, position) for group in range(len(self.kv))]
        seed, index = int(self._seed[slot]), int(self._sequence_index[slot])
        token = self._legal(slot, visible, int(position), seed, index)
        self.last_token[slot] = token
        self.length[slot] = position + 1
        return token

    def _legal(self, slot: int, visible: Sequence[np.ndarray], position: int, seed: int, index: int) -> int:
        """One of the tokens that a slot may draw, as they come in order."""
        if not self._constrained[slot]:
            return draw(visible, position, seed, index, self.shapes.vocab_size)
        words = self._masks[slot * self.shapes.slot_masks].view(np.uint32)
        ends = np.cumsum(np.bitwise_count(words))
        if not ends[-1]:
            return 0  # of a row whose result is void: nobody has sent a mask
        number = draw(visible, position, seed, index, int(ends[-1]))
        word = int(np.searchsorted(ends, number, side="right"))
        number -= int(ends[word - 1]) if word else 0
        bits = [bit for bit in range(WORD_BITS) if int(words[word]) >> bit & 1]
        return WORD_BITS * word + bits[number]

    def _read(self, group: int, slot: int, position: int) -> np.ndarray:
        size, window = self.shapes.block_size, self.shapes.groups[group].window
        first = 0 if window is None else max(0, position - window + 1)
        positions = np.arange(first, position + 1)
        return self.kv[group][self.tables[group, slot, positions // size], positions % size]
