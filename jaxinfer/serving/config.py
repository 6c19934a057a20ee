"""ServerConfig: where the server listens, and its limits."""

import functools
import importlib.util
import ipaddress
import math
from dataclasses import dataclass, field
from typing import Literal

from jaxinfer.errors import ParameterError
from jaxinfer.serving.api_keys import read_api_keys

ACCESS_LOG = "jaxinfer.access"
"""The logger of HTTP requests: client, request, status, bytes, seconds."""

_COUNTS = (
    "max_body_bytes", "max_header_bytes", "max_prompt_chars", "max_prompts", "max_choices", "max_logprob_entries",
    "max_open_requests", "max_pending_body_bytes", "body_workers", "api_workers",
)  # fmt: skip

CallParser = Literal[
    "auto", "none", "apriel", "cohere_command3", "command_r7b", "deepseek_v3", "deepseek_v31", "functionary", "glm45",
    "glm47", "granite", "hermes", "hunyuan_a13b", "internlm", "kimi_k2", "llama3_json", "llama4_json", "minimax_m2",
    "mistral", "phi4_mini_json", "qwen3_coder", "qwen3_xml", "seed_oss",
]  # fmt: skip
"""Names of forms of calls (text/answer/calls/), vLLM's where it has one."""
ThoughtParser = Literal[
    "auto", "none", "deepseek_r1", "deepseek_v3", "glm45", "kimi_k2", "minimax_m2", "mistral", "olmo3", "qwen3",
    "seed_oss", "step3", "think",
]  # fmt: skip
"""Names of forms of thoughts (text/answer/thoughts.py), vLLM's where it has one."""


@dataclass(frozen=True)
class ServerConfig:
    """The server's addresses, its API keys, and its limits for requests."""

    host: str = "127.0.0.1"
    """Address to listen on; one that others can reach needs an API key."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    grpc_port: int | None = None
    """Port for gRPC on the same address, in every API process; 0 takes a free one; by default there is none."""
    served_model_name: tuple[str, ...] = ()
    """The model's names in the API, any of which a request may use; answers carry the first. By default the MODEL that
    was given."""
    api_key: str | None = field(default=None, repr=False)
    """Key that requests to the model must bring; by default $JAXINFER_API_KEY, which no list of processes shows."""
    api_key_file: str | None = None
    """File of keys, one a line, each of which lets a request in; read when the server starts."""
    control_tokens_in_content: bool = False
    """Take control tokens that a conversation's strings hold for control tokens, as transformers does; by default they
    are the tokens of their characters, and only the chat template's own are control tokens."""
    share_cache_across_keys: bool = False
    """Reuse KV blocks of equal prefixes across several API keys. By default each key has a prefix cache of its own;
    with this flag `cached_tokens` and the time to the first token tell every client what others have sent."""
    default_deadline: float = 20.0
    """Seconds that a request may wait for a slot, if its client does not say less (X-Stainless-Timeout): one that is
    likely to wait longer is refused with 429 at once, one that has waited so long ends with 429. 0: any time."""
    max_body_bytes: int = 8 * 2**20
    """Longest request body."""
    max_pending_body_bytes: int = 96 * 2**20
    """Bytes of all bodies in an API process that are still coming or wait to be read; beyond them the one that has been
    coming for longest is refused with 503."""
    body_workers: int = 2
    """Processes of each API process that read bodies above 32 kB and those of very many parts; started when first
    needed."""
    body_queue_timeout: float = 30.0
    """Seconds that such a body may wait for one of these processes; later it is refused with 503."""
    client_header_timeout: float = 60.0
    """Seconds in which a request's headers must come."""
    client_body_timeout: float = 60.0
    """Seconds between two parts of a body; later it is refused with 408."""
    keepalive_timeout: float = 75.0
    """Seconds after which a connection without a request is closed."""
    sse_keep_alive_interval: float = 15.0
    """Seconds without an event after which a stream sends a comment line, so that proxies keep it open; 0: none."""
    max_header_bytes: int = 16 * 2**10
    """Longest request line, and longest header field."""
    max_prompt_chars: int = 4_000_000
    """Characters of one prompt; counted before it is tokenised."""
    max_prompts: int = 64
    """Prompts of one completion request."""
    max_choices: int = 256
    """Prompts times `n` of one request."""
    max_logprob_entries: int = 1_000_000
    """Log-probabilities that one reply may hold: choices times tokens times (`logprobs` + 1)."""
    max_open_requests: int = 4096
    """Requests under way at once, those that wait included; more are refused with 429."""
    max_stored_responses: int = 1000
    """Responses that each API process keeps for GET /v1/responses/{id} and `previous_response_id`; the oldest ones go.
    0: none."""
    max_stored_response_bytes: int = 64 * 2**20
    """Bytes of these responses and their conversations in each API process."""
    unknown_fields: Literal["warn", "refuse", "ignore"] = "warn"
    """Fields of a request that the API does not know; warn: ignored, logged once, and listed in X-Ignored-Fields."""
    enable_force_include_usage: bool = False
    """Send the usage in every stream, and in each of its chunks, as if each request asked for it."""
    return_tokens_as_token_ids: bool = False
    """Call tokens `token_id:5` in all log-probabilities, as if each request asked for it."""
    tool_call_parser: CallParser = "auto"
    """Form of tool calls in the model's text; auto: as the chat template shows it; none: they stay in the content."""
    reasoning_parser: ThoughtParser = "auto"
    """Form of what the model thinks; auto: as the chat template shows it; none: it stays in the content."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in a request's Host that a server without a key answers beside those of this machine, or `*` for all. A
    proxy that forwards the name by which it was called needs it."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may use the server from a browser (CORS), or `*`; by default none."""
    allowed_methods: tuple[str, ...] = ("GET", "POST")
    """Methods that such pages may use."""
    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that such pages may send; `*`: all that they ask for."""
    allow_credentials: bool = False
    """Let such pages send cookies and HTTP credentials; not with `*`."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """The least serious lines of the log on standard error; `--disable-log-stats` turns off the line of statistics."""
    access_log: bool = False
    """A line on standard error for every HTTP request."""
    otlp_traces_endpoint: str | None = None
    """Collector that gets an OpenTelemetry span a request, by OTLP over gRPC: `http://HOST:4317`, or https; needs the
    extra `otel`."""
    drain_seconds: float = 30.0
    """Seconds that requests may go on after SIGTERM or Ctrl-C."""
    api_workers: int = 1
    """Processes that speak HTTP, all on one port; one serves some thousand tokens a second."""
    engine_address: str | None = None
    """HOST:PORT or `unix:PATH` of an engine that runs already (`jaxinfer engine`), instead of one of this server's own;
    its key, if it has one, is $JAXINFER_ENGINE_KEY."""
    max_restarts: int = 10
    """Restarts of a crashed process allowed in ten minutes; one more stops the server."""
    heartbeat_seconds: float = 2.0
    """Seconds between the signs of life of the server's processes. A process that is silent for three times as long has
    stalled: it is killed and restarted. 0: no supervision of stalls."""

    @functools.cached_property
    def api_keys(self) -> tuple[str, ...]:
        """All keys that are let in; without any, everybody is. Files are read once. Raises ParameterError."""
        own = () if self.api_key is None else (self.api_key,)
        return own if self.api_key_file is None else (*own, *read_api_keys(self.api_key_file))

    def __post_init__(self) -> None:
        if isinstance(self.served_model_name, str):
            object.__setattr__(self, "served_model_name", (self.served_model_name,))
        for name, port in (("port", self.port), ("grpc_port", self.grpc_port)):
            if port is not None and not 0 <= port <= 65535:
                raise ParameterError(name, f"{port} is out of range; 0 to 65535 is allowed")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ParameterError(name, f"{getattr(self, name)} must be at least 1")
        for name in ("max_restarts", "max_stored_responses", "max_stored_response_bytes"):
            if getattr(self, name) < 0:
                raise ParameterError(name, f"{getattr(self, name)} must be at least 0")
        if not (math.isfinite(self.heartbeat_seconds) and self.heartbeat_seconds >= 0):
            raise ParameterError("heartbeat_seconds", f"{self.heartbeat_seconds} must be a finite number, at least 0")
        for name in ("body_queue_timeout", "client_header_timeout", "client_body_timeout", "keepalive_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ParameterError(name, f"{getattr(self, name)} must be a number of seconds above 0")
        if not 0 <= self.sse_keep_alive_interval < math.inf:
            name, value = "sse_keep_alive_interval", self.sse_keep_alive_interval
            raise ParameterError(name, f"{value} must be a finite number of seconds, at least 0")
        for host in self.allowed_hosts:
            if "/" in host:
                raise ParameterError("allowed_hosts", f"{host} must be a name or an address, not a URL")
        if 2 * self.max_body_bytes > self.max_pending_body_bytes:
            most = self.max_pending_body_bytes // 2
            raise ParameterError(
                "max_body_bytes", f"{self.max_body_bytes} must be at most {most}, half of max_pending_body_bytes"
            )
        if not 0 <= self.default_deadline < math.inf:
            raise ParameterError("default_deadline", f"{self.default_deadline} must be a number of seconds, or 0")
        if self.drain_seconds < 0:
            raise ParameterError("drain_seconds", f"{self.drain_seconds} must be at least 0")
        if self.engine_address is not None:
            check_address("engine_address", self.engine_address)
        if self.otlp_traces_endpoint is not None:
            _check_endpoint(self.otlp_traces_endpoint)
        if self.api_key == "":
            raise ParameterError("api_key", "must not be empty")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ParameterError("allow_credentials", "needs origins by name: browsers refuse it with `*`")

    @property
    def silence_seconds(self) -> float:
        """Seconds that a running process may be silent; 0 if stalls are not supervised."""
        return 3 * self.heartbeat_seconds


def _check_endpoint(endpoint: str) -> None:
    if not endpoint.startswith(("http://", "https://")):
        raise ParameterError("otlp_traces_endpoint", f"{endpoint!r} must begin with http:// or https://")
    missing = [name for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc") if not _installed(name)]
    if missing:
        message = f"{' and '.join(missing)} must be installed: pip install 'jaxinfer[otel]'"
        raise ParameterError("otlp_traces_endpoint", message)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it is not there
        return False


def check_address(param: str, address: str) -> None:
    """Raises ParameterError where an engine's address is neither HOST:PORT nor `unix:PATH`."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") and address != "unix:":
        return
    if not host or not port.isdigit() or int(port) > 65535:
        raise ParameterError(param, f"{address!r} must be HOST:PORT or unix:PATH")


def check_binding(options: ServerConfig) -> None:
    """Raises ParameterError where others could reach the server without a key."""
    if not options.api_keys and not is_loopback(options.host):
        key = "--api-key, --api-key-file or $JAXINFER_API_KEY"
        message = f"{options.host} can be reached by others; give {key} too, or use 127.0.0.1"
        raise ParameterError("host", message)


def is_loopback(host: str) -> bool:
    """True for an address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
