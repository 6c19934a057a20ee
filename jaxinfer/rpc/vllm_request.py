"""VllmEngine's requests, by the rules of HTTP's completions. A value that asks for what we do not have is refused."""

from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from jaxinfer.engine.types import ModelInfo
from jaxinfer.rpc.requests import lists_of, prompt_ids
from jaxinfer.sampling import parameters
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.text.defaults import GenerationDefaults

# The gateway knows the model's defaults by GetModelInfo, and has applied them: what it leaves out is vLLM's default.
DEFAULTS = GenerationDefaults()

_NOT_SUPPORTED = ("kv_transfer_params", "kv_transfer_params_json", "mm_inputs", "media_refs")
_FIELDS = pb.SamplingParams.DESCRIPTOR.fields_by_name
_UNSET_AT_ZERO = frozenset({"top_p"})
"""Parameters that may be 0, which here says that a client gave none, as for vLLM."""
_PARAMETERS = {name: parameter for name, parameter in parameters().items() if name in _FIELDS}


def completion_body(message: pb.GenerateRequest, info: ModelInfo) -> CompletionBody:
    """Convert the message to the HTTP body of an equal request. Raises RequestError, naming the field."""
    _check_supported(message)
    params = message.sampling_params
    said = lists_of(params) | _scalars(params)
    if prompt_only(message):
        said["max_tokens"] = 1  # the engine makes one, which is not shown
    if (kind := params.WhichOneof("constraint")) is not None:
        said["structured_outputs"] = _structured_outputs(params, kind)
    if cut := params.HasField("truncate_prompt_tokens"):
        said["truncate_prompt_tokens"] = params.truncate_prompt_tokens
    return CompletionBody(prompt=_prompt(message, info, cut=cut), **said)


def _structured_outputs(params: pb.SamplingParams, kind: str) -> dict[str, Any]:
    """The object of this name in HTTP, whose texts begin with the first token, as `grammar_from_first_token` asks."""
    value = getattr(params, kind)
    return {"json" if kind == "json_schema" else kind: list(value.choices) if kind == "choice" else value}


def _scalars(params: pb.SamplingParams) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, parameter in _PARAMETERS.items():
        if not _FIELDS[name].has_presence:
            # proto3 cannot tell 0 from nothing: where 0 makes no sense it is nothing.
            value = getattr(params, name)
            says = value or (parameter.allows(0) and name not in _UNSET_AT_ZERO)
            said[name] = value if says else parameter.default
        elif params.HasField(name):
            said[name] = getattr(params, name)
    return said


def prompt_only(message: pb.GenerateRequest) -> bool:
    """True for `max_tokens` of 0, which a gateway passes on where its client wants the prompt back (`echo`)."""
    return message.sampling_params.HasField("max_tokens") and message.sampling_params.max_tokens == 0


def _check_supported(message: pb.GenerateRequest) -> None:
    asked = [name for name in _NOT_SUPPORTED if message.HasField(name)]
    if message.extra_mm_inputs:
        asked.append("extra_mm_inputs")
    if message.data_parallel_rank:
        asked.append("data_parallel_rank")
    for name in asked:
        raise RequestError(f"{name}: is not supported yet", param=name, code="unsupported_parameter")


def _prompt(message: pb.GenerateRequest, info: ModelInfo, *, cut: bool) -> Any:
    kind = message.WhichOneof("input")
    if kind is None:
        raise RequestError("input: is missing; give tokenized or text", param="input")
    return message.text if kind == "text" else prompt_ids(message.tokenized.input_ids, info, cut=cut)
