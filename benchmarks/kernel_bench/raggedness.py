"""Does time follow the pages in use? And does one long row make the others long?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import RaggedRows

from benchmarks.kernel_bench.attention import attend_once, layout_of, make_pages, ragged_rows
from benchmarks.kernel_bench.bench import Bench
from benchmarks.kernel_bench.cases import decode
from benchmarks.kernel_bench.timing import Chain, time_in_turns

_ROWS = (1, 8)
_RUNS = 11


class Pool:
    """Pages of one layer for the longest context of a form; each call takes the next ones of them.

    All chains work on the same pages, one after the other. Where rows are together longer than the pool they share
    pages: one is read again when all others were, and no cache holds so many.
    """

    def __init__(self, bench: Bench, backend: str) -> None:
        self._model, self._bench, self._backend = bench.form.ragged_model, bench, backend
        self._layout, self._count = (
            layout_of(bench.platform, bench.form.ragged_model),
            bench.form.contexts[-1] // bench.page_size,
        )
        self._order = 1 + np.random.default_rng(0).permutation(self._count)
        sizes = 1, 1 + self._count, bench.page_size
        self._pages = make_pages(self._model, self._layout, *sizes, bench.form.dtype)

    def program(self, rows: int) -> Any:
        """Decode calls of `rows` rows, the n-th with the n-th table; how many is an argument."""
        case = decode(self._model, rows, 1)

        @partial(jax.jit, donate_argnums=0)
        def chain(state: Any, k: jax.Array, v: jax.Array, rows: RaggedRows, tables: jax.Array, calls: jax.Array) -> Any:
            def step(index: jax.Array, state: Any) -> Any:
                each = rows._replace(page_table=tables[index])
                return attend_once(case, self._backend, self._layout, state, k, v, 0, each, case.rows)

            return jax.lax.fori_loop(0, calls, step, state)

        return chain

    def chain(self, program: Any, lengths: Sequence[int], most_rounds: int) -> Chain:
        """Return a chain of calls, one to `most_rounds`, that reads the whole pool once."""
        rounds, rows, model = self.rounds(lengths), len(lengths), self._model
        tables = jnp.asarray(self.tables(lengths, most_rounds))
        arrays = ragged_rows(np.zeros((rows, tables.shape[2])), np.array(lengths) - 1, np.ones(rows, int))
        draw = partial(jax.random.normal, jax.random.key(0), dtype=jnp.dtype(self._bench.form.dtype))
        k, v = draw((rows, model.kv_heads, model.key_dim)), draw((rows, model.kv_heads, model.value_dim))

        def run(q: jax.Array) -> jax.Array:
            self._pages, q = jax.block_until_ready(program((self._pages, q), k, v, arrays, tables, jnp.int32(rounds)))
            return q

        return Chain(run, draw((rows, model.q_heads, model.key_dim)), rounds)

    def rounds(self, lengths: Sequence[int]) -> int:
        """Calls that read the pool once."""
        return max(self._count // sum(self._used(each) for each in lengths), 1)

    def tables(self, lengths: Sequence[int], rounds: int) -> np.ndarray:
        """[rounds, rows, pages of the pool]: each row goes on in the pool where the one before it ended, around."""
        table, place = np.zeros((rounds, len(lengths), self._count), np.int32), 0
        for index in np.ndindex(rounds, len(lengths)):
            used = self._used(lengths[index[1]])
            table[index][:used] = self._order[(place + np.arange(used)) % self._count]
            place += used
        return table

    def _used(self, tokens: int) -> int:
        return -(-tokens // self._bench.page_size)


def follow_pages(bench: Bench, backend: str) -> Iterator[dict[str, Any]]:
    """Time of a decode call against pages in use, for one row and for eight; one program for all contexts.

    The median of the runs, and, for a machine that others use, the same of the fastest run of each.
    """
    contexts = bench.form.contexts
    for rows in _ROWS:
        pool = Pool(bench, backend)
        program, most = pool.program(rows), pool.rounds([contexts[0]] * rows)
        makers = {str(each): partial(pool.chain, program, [each] * rows, most) for each in contexts}
        about = {"backend": backend, "model": bench.form.ragged_model.name, "rows": rows}
        try:
            found = _timed(makers)
        except RuntimeError as error:
            yield {**about, "error": str(error)}
            continue
        pages = [rows * -(-each // bench.page_size) for each in contexts]
        fastest = line_through(pages, [min(one) for one in found.values()])
        yield {**about, **line_through(pages, [median(one) for one in found.values()]), "fastest": fastest}


def beside_long(bench: Bench, backend: str) -> dict[str, Any]:
    """One long row beside short ones, against both apart; each of the three has a program of its own."""
    long, count, short = bench.form.apart
    pool = Pool(bench, backend)
    kinds = {"together": [long] + [short] * count, "long": [long], "short": [short] * count}
    makers = {
        name: partial(pool.chain, pool.program(len(lengths)), lengths, pool.rounds(lengths))
        for name, lengths in kinds.items()
    }
    about = {"backend": backend, "model": bench.form.ragged_model.name, "long": long, "short": f"{count} x {short}"}
    try:
        found = _timed(makers)
    except RuntimeError as error:
        return {**about, "error": str(error)}
    # Of each round: what else the machine did in it met all three.
    ratios = [each / (a + b) for each, a, b in zip(found["together"], found["long"], found["short"], strict=True)]
    middle = {f"{name}_us": round(1e6 * median(one), 2) for name, one in found.items()}
    return {**about, **middle, "ratio": round(median(ratios), 4), "ratio_low_high": _rounded(min(ratios), max(ratios))}


def line_through(pages: Sequence[int], seconds: Sequence[float]) -> dict[str, Any]:
    """The line with the least squares of relative errors, and the largest of these."""
    x, y = np.asarray(pages, float), np.asarray(seconds)
    (slope, start), *_ = np.linalg.lstsq(np.stack([x, np.ones_like(x)], 1) / y[:, None], np.ones_like(y), rcond=None)
    fitted = start + slope * x
    return {
        "pages": list(pages),
        "us": _rounded(*(1e6 * y)),
        "fitted_us": _rounded(*(1e6 * fitted)),
        "us_a_page": round(1e6 * float(slope), 4),
        "us_at_no_page": round(1e6 * float(start), 2),
        "largest_deviation": round(float(np.abs(y / fitted - 1).max()), 4),
    }


def _timed(makers: Mapping[str, Callable[[], Chain]]) -> dict[str, list[float]]:
    """Raises RuntimeError with what the first chain that did not run says."""
    found = {}
    for name, one in time_in_turns(makers, _RUNS).items():
        if isinstance(one, str):
            raise RuntimeError(f"{name}: {one}")
        found[name] = one
    return found


def _rounded(*values: float) -> list[float]:
    return [float(round(value, 4)) for value in values]
