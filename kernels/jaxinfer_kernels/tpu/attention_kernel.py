"""The TPU attention kernel: one program walks blocks of queries and, of each, tiles of keys, with the next ones on
their way.

Copies and what waits for them, with two places for each kind:

    block   b            b + 1
    ids     start b+1 …  (the page ids of the next block, into SMEM)
    q       wait b, start b+1
    tiles   wait 0, start 1 | wait 1, start 2 | … | wait last, start tile 0 of b+1
    out     wait b-2, start b
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jaxinfer_kernels.tpu import attention_copies as copies
from jaxinfer_kernels.tpu import attention_softmax as softmax
from jaxinfer_kernels.tpu.attention_copies import Form, Refs, Span


def attention_kernel(r: Refs, form: Form) -> None:
    """Attends the blocks of one core."""
    core, cores = pl.program_id(0), pl.num_programs(0)
    mine = jax.lax.div(r.info[0] - core + cores - 1, cores)

    @pl.when(mine > 0)
    def _() -> None:
        copies.ids_copy(r, core, 0).start()
        copies.ids_copy(r, core, 0).wait()
        copies.start_queries(r, form, core, 0)
        copies.start_pages(r, form, copies.span_of(r, form, core), 0, 0, 0)

    def block(index: jax.Array, place: jax.Array) -> jax.Array:
        span = copies.span_of(r, form, core + index * cores)
        more, side = index + 1 < mine, jax.lax.rem(index, 2)
        following = copies.span_of(r, form, jnp.where(more, span.item + cores, core))
        place = _attend_block(r, form, span, following, more, side, place)

        @pl.when(index >= 2)
        def _() -> None:
            copies.wait_results(r, form, span.item - 2 * cores, side)

        softmax.finish_block(r, form, side)
        copies.start_results(r, form, span.item, side)
        return place

    jax.lax.fori_loop(0, mine, block, jnp.int32(0))
    for back in (2, 1):

        @pl.when(mine >= back)
        def _(index: jax.Array = mine - back) -> None:
            copies.wait_results(r, form, core + index * cores, jax.lax.rem(index, 2))


def _attend_block(
    r: Refs, form: Form, span: Span, following: Span, more: jax.Array, side: jax.Array, place: jax.Array
) -> jax.Array:
    """All keys of one block.

    following: the next block, if there is one `more`. side: which of two places the block has. place: where its first
    tile arrives; returns that of the next block's.
    """

    @pl.when(more)
    def _() -> None:
        copies.ids_copy(r, following.item, 1 - side).start()

    copies.wait_queries(r, form, span.item, side)

    @pl.when(more)
    def _() -> None:
        copies.start_queries(r, form, following.item, 1 - side)

    softmax.begin_block(r)

    def tile(index: jax.Array, place: jax.Array) -> jax.Array:
        last = index + 1 == span.tiles

        @pl.when(~last)
        def _() -> None:
            copies.start_pages(r, form, span, index + 1, side, 1 - place)

        @pl.when(last & more)
        def _() -> None:
            copies.ids_copy(r, following.item, 1 - side).wait()
            copies.start_pages(r, form, following, 0, 1 - side, 1 - place)

        copies.wait_pages(r, form, span, index, place)
        if form.packed:
            copies.send_groups(r, form, span, index, side, place)
        softmax.add_tile(r, form, index, side, place, span)
        return 1 - place

    place = jax.lax.fori_loop(0, span.tiles, tile, place)
    if form.packed:
        copies.wait_groups(r, form, span)
    return place
