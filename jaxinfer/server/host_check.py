"""The Host header: a server that asks for no key answers only names of this machine.

Without a key the server listens on loopback, but a web page may still reach it: a name that the page's owner makes
resolve to 127.0.0.1 (DNS rebinding) is the page's own origin to the browser. Its requests carry that name as Host.
"""

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import Handler, HttpError, error_response
from jaxinfer.serving.config import ServerConfig, is_loopback


def make_host_middleware(options: ServerConfig) -> Middleware:
    """Answer 403 to other hosts than loopback names and `allowed_hosts`. With API keys every host is answered."""
    allowed = {host_name(host) for host in options.allowed_hosts}
    every = bool(options.api_keys) or "*" in allowed

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = host_name(request.headers.get("Host", ""))
        if every or name in allowed or _is_own(name):
            return await handler(request)
        return error_response(_refusal(name), request)

    return check


def host_name(host: str) -> str:
    """Return the name in a Host header, or an address by itself, in lower case, without port, brackets and final
    dot."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    if name.count(":") > 1:  # an IPv6 address, which has no port without brackets
        return name
    return name.partition(":")[0].removesuffix(".")


def _is_own(name: str) -> bool:
    # Browsers always send a host; a client without one is no web page.
    return not name or is_loopback(name) or name.endswith(".localhost")


def _refusal(name: str) -> HttpError:
    told = ascii(name)  # bytes of a header that are no text come as lone surrogates
    message = (
        f"the host {told} is not served: without an API key only names of this machine are, such as localhost; "
        f"start the server with --allowed-hosts {told[1:-1]}, or with a key"
    )
    return HttpError(403, message, code="host_not_allowed")
