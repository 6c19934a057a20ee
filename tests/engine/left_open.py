"""An engine that nobody closes: `python -m tests.engine.left_open` ends in the midst of its work, with status 3."""

import asyncio
import sys

from jaxinfer.engine.client.local import LocalEngineClient
from tests.engine.gate import Gate
from tests.engine.small import ask, small_core


class Telling(Gate):
    """Says that it was closed."""

    def close(self) -> None:
        super().close()
        print("closed")


async def main() -> None:
    client = LocalEngineClient(small_core(Telling()))
    async for _ in await client.submit(ask("r", 4, 40)):
        sys.exit(3)


if __name__ == "__main__":
    asyncio.run(main())
