"""The columns of the vocabulary that a device holds, and what devices exchange where it is split over several.

The sampler runs in `shard_map`, each device over its own columns. Devices exchange numbers for each row (a maximum, a
sum, the 20 most likely tokens), never logits.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Vocabulary(NamedTuple):
    """Layout of an axis over the vocabulary on devices.

    axes: mesh axes that it is split over, in order; none: this device holds all of it, and nothing is exchanged.
    size: tokens, if columns without a token follow the last one; None: every column is a token's.
    """

    axes: tuple[str, ...] = ()
    size: int | None = None

    def of_tokens(self, logits: jax.Array) -> jax.Array:
        """logits [S, n] of this device's columns; those that no token has become -inf: never drawn, never reported."""
        if self.size is None:
            return logits
        ids = self.first(logits.shape[1]) + jnp.arange(logits.shape[1])
        return jnp.where(ids < self.size, logits, -jnp.inf)

    def max(self, x: jax.Array) -> jax.Array:
        """The largest of what each device has, elementwise."""
        return jax.lax.pmax(x, self.axes) if self.axes else x

    def min(self, x: jax.Array) -> jax.Array:
        """The smallest of what each device has, elementwise."""
        return jax.lax.pmin(x, self.axes) if self.axes else x

    def sum(self, x: jax.Array) -> jax.Array:
        """The sum of what each device has, elementwise."""
        return jax.lax.psum(x, self.axes) if self.axes else x

    def any(self, x: jax.Array) -> jax.Array:
        """Return True where some device has True, elementwise."""
        return self.max(x.astype(jnp.int32)) > 0 if self.axes else x

    def before(self, x: jax.Array) -> jax.Array:
        """The sum of what the devices of earlier columns have, elementwise."""
        if not self.axes:
            return jnp.zeros_like(x)
        every = jax.lax.all_gather(x, self.axes)
        earlier = jnp.arange(every.shape[0]) < jax.lax.axis_index(self.axes)
        return jnp.sum(jnp.where(earlier.reshape(-1, *[1] * x.ndim), every, 0), axis=0)

    def joined(self, x: jax.Array) -> jax.Array:
        """Gather each device's columns, [S, n], side by side in their order: [S, devices * n]."""
        return jax.lax.all_gather(x, self.axes, axis=1, tiled=True) if self.axes else x

    def first(self, width: int) -> jax.Array | int:
        """The id of this device's first column, of `width`."""
        return jax.lax.axis_index(self.axes) * width if self.axes else 0

    def columns(self, ids: jax.Array, width: int) -> jax.Array:
        """This device's columns of some ids; `width` for ids that it does not hold, and for negative ones."""
        own = ids - self.first(width)
        return jnp.where((ids >= 0) & (own >= 0) & (own < width), own, width)


WHOLE = Vocabulary()
