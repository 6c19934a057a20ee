"""Seconds that one key's trivial grammar waits while another key's slow ones are compiled:
`python -m benchmarks.grammar_queue [--slow 23]`. An engine without a device, and the demo's tokenizer."""

import argparse
import asyncio
import time

from jaxinfer.build import DEMO_FOLDER
from jaxinfer.config import SchedulerConfig
from jaxinfer.constraint import Constraint
from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.errors import JaxinferError
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.sampling import SamplingParams

_VOCABULARY, _SEQUENCES, _LENGTH, _BLOCK, _BLOCKS = 4096, 32, 512, 16, 2048


def engine() -> LocalEngineClient:
    """An engine whose device takes no time."""
    shapes = EngineShapes(
        max_num_seqs=_SEQUENCES, max_num_batched_tokens=256, max_scored=_SEQUENCES, max_model_len=_LENGTH,
        block_size=_BLOCK, groups=(KVGroup(None, _BLOCKS),), vocab_size=_VOCABULARY,
    )  # fmt: skip
    info = ModelInfo("simulated", _LENGTH, _VOCABULARY, _SEQUENCES, _BLOCK, _BLOCKS)
    grammars = Grammars(DEMO_FOLDER / "tokenizer.json", _VOCABULARY, (0,))
    scheduler = SchedulerConfig(max_num_seqs=_SEQUENCES)
    return LocalEngineClient(EngineCore(SimulatedRunner(shapes), info, scheduler=scheduler, constraints=grammars))


async def answered(client: LocalEngineClient, name: str, key: str, constraint: Constraint) -> tuple[float, str]:
    """Seconds from a request to when it is queued, or refused with a reason."""
    params = SamplingParams(max_tokens=1, structured_outputs=constraint)
    begun = time.perf_counter()
    try:
        await client.submit(GenerateRequest(name, [1, 2, 3], params, tenant=(key,)))
    except JaxinferError as error:
        return time.perf_counter() - begun, f"{type(error).__name__}: {error}"[:90]
    finally:
        client.abort(name)
    return time.perf_counter() - begun, "queued"


async def measure(slow: int) -> None:
    """Print what each key waited for."""
    client = engine()
    await answered(client, "first", "c", Constraint.text("regex", "x+"))
    schemas = [Constraint.schema({"type": "integer", "multipleOf": 9_999_001 + 10 * each}) for each in range(slow)]
    others = [asyncio.ensure_future(answered(client, f"a{i}", "a", each)) for i, each in enumerate(schemas)]
    await asyncio.sleep(1)
    for number in range(3):
        seconds, told = await answered(client, f"b{number}", "b", Constraint.text("regex", f"y{{{number + 1}}}"))
        print(f"key b, trivial grammar {number}: {seconds:6.2f} s, {told}", flush=True)
    for number, (seconds, told) in enumerate(await asyncio.gather(*others)):
        print(f"key a, slow grammar {number:2}: {seconds:6.1f} s, {told}", flush=True)
    again, told = await answered(client, "again", "a", schemas[0])
    print(f"key a, the first one again: {again:.3f} s, {told}")
    await client.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", type=int, default=23)
    asyncio.run(measure(parser.parse_args().slow))


if __name__ == "__main__":
    main()
