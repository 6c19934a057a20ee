"""`jaxinfer serve` on several hosts of one engine: supervisors that reach each other over loopback, through proxies."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, NamedTuple

import aiohttp
import psutil

from tests.cli.command_line import ENVIRONMENT, REAL
from tests.hosts.proxy import Proxy
from tests.material import REPOSITORY
from tests.processes.serving import Serving

ENGINE_WORDS = "jaxinfer.processes.engine", "jaxinfer.processes.follower"
"""Of the command lines of the processes that have a host's devices."""

_LOWEST_PORT, _HIGHEST_PORT = 20_000, 32_000
"""The system gives none of them to connections: a host that starts again finds its own ports free."""


class Way(NamedTuple):
    """How a follower reaches host 0: by a proxy for JAX's coordinator, and one for the stream at the next port."""

    coordinator: Proxy
    stream: Proxy


class HostGroup:
    """The hosts of one engine. ways: of each follower, from host 1 on. logs: what each host's processes print."""

    def __init__(self, model: Path, work: Path, num_hosts: int, session: aiohttp.ClientSession, flags: Sequence[str]):
        self.num_hosts = num_hosts
        self.logs = [work / f"host-{i}.log" for i in range(num_hosts)]
        self.caches = [work / f"cache-{i}" for i in range(num_hosts)]
        self.session = session
        self._model = model
        self._flags = flags
        ports = _Ports()
        self._port = ports.pair()
        self.ways: list[Way] = []
        for _ in range(1, num_hosts):
            near = ports.pair()
            self.ways.append(Way(*(Proxy(f"127.0.0.1:{self._port + i}", near + i) for i in (0, 1))))
        self._urls = [ports.pair() for _ in range(num_hosts)]
        self.hosts: list[Serving] = []
        self._files: list[IO[bytes]] = [log.open("ab") for log in self.logs]

    async def start(
        self, host_id: int, *more: str, model: Path | None = None, program: Sequence[str] = REAL
    ) -> Serving:
        """Starts a host's supervisor, or another one where the last has ended. more: flags of this host alone."""
        coordinator = self._port if host_id == 0 else self.ways[host_id - 1].coordinator.port
        process = await asyncio.create_subprocess_exec(
            *program, "serve", str(model or self._model), "--port", str(self._urls[host_id]), "--log-level", "info",
            "--coordinator", f"127.0.0.1:{coordinator}", "--num-hosts", str(self.num_hosts), "--host-id", str(host_id),
            "--compile-cache-dir", str(self.caches[host_id]), "--drain-seconds", "2", "--disable-log-stats",
            "--default-deadline", "0",
            *self._flags, *more,
            stdout=self._files[host_id], stderr=self._files[host_id], cwd=REPOSITORY,
            env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip
        serving = Serving(process, f"http://127.0.0.1:{self._urls[host_id]}", self.session)
        self.hosts[host_id : host_id + 1] = [serving]
        return serving

    async def until_ready(self, seconds: float = 120.0) -> None:
        """Waits until every host is; none may end."""
        async with asyncio.timeout(seconds):
            while not await self._all_ready():
                self._check_alive()
                await asyncio.sleep(0.02)

    async def until_status(self, status: int | None, hosts: Sequence[int], seconds: float) -> None:
        """Waits until /readyz of each of `hosts` has it; None: there is no answer."""
        async with asyncio.timeout(seconds):
            while any([await self.readiness(host) != status for host in hosts]):
                await asyncio.sleep(0.02)

    async def readiness(self, host_id: int) -> int | None:
        """The status of /readyz; None where there is no answer within a second."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(1.0):
                return await self.hosts[host_id].status("/readyz")
        return None

    def engines(self) -> list[psutil.Process]:
        """Of this moment: the engine of host 0, and the followers, those that run."""
        found = []
        for host in self.hosts:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(host.process.pid).children():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if any(word in child.cmdline() for word in ENGINE_WORDS):
                            found.append(child)
        return found

    def text(self, host_id: int) -> str:
        """What a host's processes have printed so far."""
        return self.logs[host_id].read_text()

    async def until_restarted(self, old: Sequence[psutil.Process], seconds: float) -> int:
        """Waits until every host has another engine or follower than `old`, and is ready. Supervisors that end are
        started again; how many did."""
        ended = 0
        async with asyncio.timeout(seconds):
            while len(new := self.engines()) < self.num_hosts or set(new) & set(old) or not await self._all_ready():
                for host_id, host in enumerate(self.hosts):
                    if host.process.returncode is not None:
                        ended += 1
                        await self.start(host_id)
                await asyncio.sleep(0.02)
        return ended

    async def _all_ready(self) -> bool:
        return all([await self.readiness(host) == 200 for host in range(self.num_hosts)])

    def _check_alive(self) -> None:
        for host_id, host in enumerate(self.hosts):
            if host.process.returncode is not None:
                raise AssertionError(f"host {host_id} has ended with {host.process.returncode}:\n{self.text(host_id)}")

    async def close(self) -> None:
        """Ends what still runs, host 0 first."""
        for host in self.hosts:
            if host.process.returncode is None:
                host.process.send_signal(signal.SIGCONT)
                host.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(20):
                await asyncio.gather(*(host.process.wait() for host in self.hosts))
        finally:
            for host in self.hosts:
                if host.process.returncode is None:
                    host.process.kill()
            for way in self.ways:
                for proxy in way:
                    proxy.cut()
            for file in self._files:
                file.close()


@asynccontextmanager
async def hosts_of(
    model: Path, work: Path, num_hosts: int, *flags: str, start: bool = True
) -> AsyncIterator[HostGroup]:
    """Starts hosts that serve, and ends them. work: a folder for logs and kept programs. start: False leaves it to the
    caller."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        group = HostGroup(model, work, num_hosts, session, flags)
        try:
            if start:
                for host_id in range(num_hosts):
                    await group.start(host_id)
                await group.until_ready()
            yield group
        finally:
            await group.close()


class _Ports:
    """Pairs of free ports, one next to the other."""

    def __init__(self) -> None:
        self._next = _LOWEST_PORT + 2 * (os.getpid() % ((_HIGHEST_PORT - _LOWEST_PORT) // 2))

    def pair(self) -> int:
        """The first of two."""
        while True:
            first = self._next
            self._next = first + 2 if first + 2 < _HIGHEST_PORT else _LOWEST_PORT
            if _is_free(first) and _is_free(first + 1):
                return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
