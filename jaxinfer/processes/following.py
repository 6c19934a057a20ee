"""A host that follows another: its engine's process, and probes of it."""

import contextlib
import sys
from collections.abc import AsyncIterator

from aiohttp import web

from jaxinfer.config import EngineConfig
from jaxinfer.console.messages import show
from jaxinfer.hosts.launch import Place
from jaxinfer.processes.supervisor import Supervisor
from jaxinfer.serving.config import ServerConfig
from jaxinfer.version import __version__


async def serve_follower(config: EngineConfig, options: ServerConfig, place: Place) -> int:
    """Follows host 0 until it ends, or until a signal; the exit status, as of a Supervisor. `/healthz` and `/readyz`
    are served meanwhile; requests are host 0's."""
    probes = _Probes()

    def announce(_: str) -> None:
        probes.ready = True
        show(f"jaxinfer {__version__} follows host 0 of {place.num_hosts} as host {place.host_id}", sys.stdout)

    def end() -> None:
        probes.ready = False

    supervisor = Supervisor(config, options, [], announce, follows=True, on_end=end)
    async with _served(probes, options):
        return await supervisor.run()


class _Probes:
    """ready: whether host 0 can send calls."""

    def __init__(self) -> None:
        self.ready = False

    async def healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(self, _: web.Request) -> web.Response:
        status, text = (200, "ready") if self.ready else (503, "not ready")
        return web.json_response({"status": text}, status=status)


@contextlib.asynccontextmanager
async def _served(probes: _Probes, options: ServerConfig) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get("/healthz", probes.healthz), web.get("/readyz", probes.readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    try:
        yield
    finally:
        await runner.cleanup()
