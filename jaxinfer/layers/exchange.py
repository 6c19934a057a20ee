"""Rows exchanged between devices, in shard_map: to those that have their experts, and results back."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.parallel.rules import Split


def exchanged(
    x: jax.Array,
    experts: jax.Array,
    counts: jax.Array,
    results: Callable[[jax.Array, jax.Array], jax.Array],
    over: Split,
    ragged: bool,
) -> jax.Array:
    """Row r of the result [R, hidden] is expert experts[r]'s of x[r // (R / S)], 0 where there is none.

    x: [S, hidden], this device's. experts: [R] int32, their number for none. counts: [devices, experts] int32, rows
    that each device has for each expert; experts lie on the devices in order, as many on each. results(rows, experts):
    those of this device's experts, numbered from 0, their number for none. over: the mesh axes of the devices. ragged:
    by ragged_all_to_all, which sends the rows that there are; otherwise as many go to each device as it may be sent.
    """
    parts, each = len(counts), len(experts) // len(x)
    own = counts.shape[1] // parts
    order = jnp.argsort(experts, stable=True)
    me = jax.lax.axis_index(over)
    route = _Route(
        counts.reshape(parts, parts, own).sum(axis=-1, dtype=jnp.int32),
        jax.lax.dynamic_slice_in_dim(counts, me * own, own, axis=1),
        me,
        len(x) * min(each, own),
        over,
    )
    send = _ragged if ragged else _padded
    out = send(route, x[order // each], results)
    out = jnp.where((experts[order] < counts.shape[1])[:, None], out, 0)
    back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
    return out[back]


class _Route(NamedTuple):
    """between: [from, to] int32, rows that devices send each other. arriving: [from, own experts] int32, those for
    this device, which is number `me`. most: that one device may send another. over: their mesh axes."""

    between: jax.Array
    arriving: jax.Array
    me: jax.Array
    most: int
    over: Split

    @property
    def starts(self) -> jax.Array:
        """[from, to]: where the rows for a device begin among those of another, sorted by expert."""
        return jnp.cumsum(self.between, axis=1) - self.between

    @property
    def places(self) -> jax.Array:
        """[from, to]: where a device's rows begin among those that another receives, one device's after another's."""
        return jnp.cumsum(self.between, axis=0) - self.between


def _ragged(route: _Route, rows: jax.Array, results: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """rows [R, hidden], sorted by expert, to their results."""
    parts, own = route.arriving.shape
    total, sent, received = parts * route.most, route.between[route.me], route.between[:, route.me]
    starts, places = route.starts, route.places
    room = jnp.zeros((total, rows.shape[1]), rows.dtype)
    there = jax.lax.ragged_all_to_all(
        rows, room, starts[route.me], sent, places[route.me], received, axis_name=route.over
    )
    numbers = jnp.tile(jnp.arange(own, dtype=jnp.int32), parts)
    experts = jnp.repeat(numbers, route.arriving.reshape(-1), total_repeat_length=total)
    experts = jnp.where(jnp.arange(total) < jnp.sum(received), experts, own)
    return jax.lax.ragged_all_to_all(
        results(there, experts),
        jnp.zeros_like(rows),
        places[:, route.me],
        received,
        starts[:, route.me],
        sent,
        axis_name=route.over,
    )


def _padded(route: _Route, rows: jax.Array, results: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """rows [R, hidden], sorted by expert, to their results; those of none are any."""
    parts, place = len(route.between), jnp.arange(route.most)
    starts, ends = route.starts[route.me], jnp.cumsum(route.between[route.me])
    sent = rows[jnp.minimum(starts[:, None] + place, len(rows) - 1)]
    there = jax.lax.all_to_all(sent, route.over, 0, 0, tiled=True)
    bounds = jnp.cumsum(route.arriving, axis=1)
    experts = jnp.sum(bounds[:, None, :] <= place[:, None], axis=-1, dtype=jnp.int32)
    found = results(there.reshape(-1, rows.shape[1]), experts.reshape(-1))
    back = jax.lax.all_to_all(found.reshape(sent.shape), route.over, 0, 0, tiled=True)
    row = jnp.arange(len(rows))
    target = jnp.minimum(jnp.sum(ends <= row[:, None], axis=-1), parts - 1)
    return back[target, jnp.minimum(row - starts[target], route.most - 1)]
