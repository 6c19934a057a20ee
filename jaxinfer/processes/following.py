"""A host that follows another: its engine's process, and probes of it."""

import contextlib
import sys
from collections.abc import AsyncIterator

from aiohttp import web

from jaxinfer.config import EngineConfig
from jaxinfer.console.messages import show
from jaxinfer.hosts.launch import HostPlace
from jaxinfer.processes.supervisor import Supervisor
from jaxinfer.server.run import bind_socket
from jaxinfer.serving.config import ServerConfig
from jaxinfer.version import __version__


async def serve_follower(config: EngineConfig, options: ServerConfig, place: HostPlace) -> int:
    """Follows host 0 until it ends, or until a signal; the exit status, as of a Supervisor. `/healthz` and `/readyz`
    are served meanwhile; requests are host 0's."""
    probes = _Probes(place)

    def announce(_: str) -> None:
        probes.ready = True
        show(f"jaxinfer {__version__} follows host 0 of {place.num_hosts} as host {place.host_id}", sys.stdout)

    def end() -> None:
        probes.ready = False

    supervisor = Supervisor(config, options, [], announce, follows=True, on_end=end)
    async with _served(probes, options):
        return await supervisor.run()


class _Probes:
    """Health probes of a follower. ready: host 0 can send calls."""

    def __init__(self, place: HostPlace) -> None:
        self.ready = False
        self._place = place

    async def healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(self, _: web.Request) -> web.Response:
        status, text = (200, "ready") if self.ready else (503, "not ready")
        return web.json_response({"status": text}, status=status)

    async def elsewhere(self, _: web.Request) -> web.Response:
        """To everything else, an error as OpenAI's API has it."""
        message = f"this is host {self._place.host_id} of {self._place.num_hosts}: requests go to host 0"
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "not_found"}
        return web.json_response({"error": error}, status=404)


@contextlib.asynccontextmanager
async def _served(probes: _Probes, options: ServerConfig) -> AsyncIterator[None]:
    app = web.Application()
    app.add_routes([web.get("/healthz", probes.healthz), web.get("/readyz", probes.readyz)])
    app.add_routes([web.route("*", "/{path:.*}", probes.elsewhere)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, bind_socket(options)).start()
    try:
        yield
    finally:
        await runner.cleanup()
