"""An EAGLE-3 head trained for the demo model, with training-time test (arXiv:2503.01840, section 3.1)."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from demo_training.model import Params, packed
from demo_training.tokens import Batch
from jaxinfer.layers.attention import Heads
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.embedding import scores as table_scores
from jaxinfer.layers.linear import Linear
from jaxinfer.layers.param import held, matrix, value
from jaxinfer.model_config.eagle3 import Eagle3Config
from jaxinfer.models.decoder import KV, Attend, Place
from jaxinfer.models.eagle3 import Eagle3Head
from jaxinfer.models.loaded import LoadedModel

_NEVER = -1e9


class Taught(NamedTuple):
    """Outputs of the target for a batch. tapped: hidden states of three layers, [B·T, D] each. likely: [B, T, drafts],
    its probabilities of the draft vocabulary. inside: [B, T], its probability of that vocabulary, 0 where the answer
    does not go on."""

    tapped: tuple[jax.Array, ...]
    likely: jax.Array
    inside: jax.Array


class Pupil(nnx.Module):
    """A head with its output matrix."""

    def __init__(self, config: Eagle3Config):
        dtype, decoder = jnp.dtype(jnp.float32), config.decoder
        self.head = Eagle3Head(config, dtype)
        self.table = matrix(decoder.table_shape, ("vocab", "embed"), dtype, decoder.hidden_size**-0.5, None)


def frequent_tokens(batches: Iterator[Batch], size: int, count: int = 60) -> np.ndarray:
    """The `size` tokens that answers of some batches say most, in order of their ids."""
    said = np.zeros(0, np.int64)
    for batch in islice(batches, count):
        counts = np.bincount(batch.targets[batch.weights > 0], minlength=len(said))
        said = counts + np.pad(said, (0, len(counts) - len(said)))
    return np.sort(np.argsort(-said, kind="stable")[:size])


class HeadTrainee:
    """A head whose parameters are passed in. target: in float32. columns: the target's id of each draft id."""

    def __init__(self, target: LoadedModel, config: Eagle3Config, columns: np.ndarray, steps: int):
        self._target, self.config, self._columns, self._steps = target, config, columns, steps
        self._graph, self._shapes = nnx.split(Pupil(config))

    def init(self, seed: int) -> Params:
        """Random but for the output matrix and its norm, which are the target's; little is added to the residual."""
        decoder = self._target.build(self._target.weights)
        rows, norm = self._target.head[0][self._columns], value(decoder.norm)
        keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(self._shapes))))

        def fill(path: tuple[Any, ...], variable: nnx.Variable) -> nnx.Variable:
            if path == ("table",):
                return variable.replace(jnp.array(rows))
            if path == ("head", "norm"):
                return variable.replace(jnp.array(norm))
            shape, std = variable.get_value().shape, variable.get_metadata()["std"]
            if std is None:
                return variable.replace(jnp.ones(shape))
            scale = 0.5 if path[-1] in ("out", "down") else 1.0
            return variable.replace(jax.random.normal(next(keys), shape) * std * scale)

        return nnx.from_flat_state({path: fill(path, one) for path, one in nnx.to_flat_state(self._shapes)})

    def taught(self, weights: tuple[jax.Array, ...], batch: Batch) -> Taught:
        """weights: of the target."""
        decoder, model = self._target.build(weights), self._target
        tokens, positions = jnp.asarray(batch.tokens).reshape(-1), jnp.asarray(batch.positions).reshape(-1)
        attend = packed(jnp.asarray(batch.segments))
        run = decoder.run(tokens, positions, (), None, attend, Dispatch(), self.config.layers)
        logits = model.logits(model.head, decoder.final_norm(run.hidden))
        chances = jax.nn.softmax(logits)[:, self._columns]
        said = jnp.zeros(len(tokens)).at[batch.at].max(batch.weights)
        inside = jnp.sum(chances, axis=-1)
        shape = batch.tokens.shape
        likely = (chances / inside[:, None]).reshape(*shape, -1)
        return Taught(run.tapped, likely, (inside * said).reshape(shape))

    def scores(self, params: Params, tapped: tuple[jax.Array, ...], batch: Batch) -> list[jax.Array]:
        """Logits [B, T, drafts] of each step: of the first from features of a position, of later ones from what the
        step before gave for the position before."""
        pupil, shape = nnx.merge(self._graph, params), batch.tokens.shape
        decoder = self._target.build(self._target.weights)
        after = jnp.roll(jnp.asarray(batch.tokens), -1, axis=1).reshape(-1)
        embedded, hidden = pupil.head.embedded(held(decoder.embed), after), pupil.head.features(tapped)
        positions, kv, found = jnp.asarray(batch.positions).reshape(-1), (), []
        attend = chained(jnp.asarray(batch.segments))
        for _ in range(self._steps):
            hidden, kv = pupil.head(hidden, embedded, positions, kv, attend)
            logits = table_scores(Linear(held(pupil.table)), pupil.head.final_norm(hidden))
            found.append(logits.reshape(*shape, -1))
            hidden = jnp.roll(hidden.reshape(*shape, -1), 1, axis=1).reshape(hidden.shape)
        return found

    def loss(self, params: Params, taught: Taught, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Mean cross-entropy with the target's next token but one, later steps at 0.8 of the weight of the one before;
        and at each step how often the likeliest tokens are the same."""
        likely, weights = (jnp.roll(x, -1, axis=1) for x in (taught.likely, taught.inside))
        positions = jnp.asarray(batch.positions)
        loss, agreed = jnp.float32(0), []
        for step, scores in enumerate(self.scores(params, taught.tapped, batch)):
            own = weights * ((positions >= step) & (positions < jnp.roll(positions, -1, axis=1)))
            surprise = -jnp.sum(likely * jax.nn.log_softmax(scores), axis=-1)
            loss += 0.8**step * jnp.sum(surprise * own) / jnp.sum(own)
            same = jnp.argmax(scores, axis=-1) == jnp.argmax(likely, axis=-1)
            agreed.append(jnp.sum(same * own) / jnp.sum(own))
        return loss, jnp.stack(agreed)


def chained(segments: jax.Array) -> Attend:
    """Attention of the steps of a training-time test over rows [B, T]. kv: keys and values of the steps before.

    In step s a position sees what the first step kept of positions up to s before its own, and of each later step k
    the one position that lies s - k before.
    """
    batch, length = segments.shape
    alike = segments[:, :, None] == segments[:, None, :]

    def attend(given: Heads, kv: KV, place: Place) -> tuple[jax.Array, KV]:
        dim, heads = given.k.shape[2], given.k.shape[1]
        q = given.q.reshape(batch, length, heads, -1, dim)
        kv = (*kv, jnp.stack([x.reshape(batch, length, heads, dim) for x in (given.k, given.v)]))
        step = len(kv) - 1
        seen = alike & jnp.tril(jnp.ones((length, length), bool), -step)
        scores = jnp.einsum("bthgd,bshd->bthgs", q, kv[0][0])
        scores = jnp.where(seen[:, :, None, None], scores, _NEVER / place.scoring.scale)
        own = [jnp.roll(kv[k], step - k, axis=2) for k in range(1, step + 1)]
        diagonal = [jnp.einsum("bthgd,bthd->bthg", q, keys)[..., None] for keys, _ in own]
        weights = jax.nn.softmax(jnp.concatenate([scores, *diagonal], axis=-1) * place.scoring.scale, axis=-1)
        out = jnp.einsum("bthgs,bshd->bthgd", weights[..., :length], kv[0][1])
        for k, (_, values) in enumerate(own):
            out += weights[..., length + k, None] * values[:, :, :, None]
        return out.reshape(batch * length, -1, dim), kv

    return attend
