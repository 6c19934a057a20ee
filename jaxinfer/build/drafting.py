"""Drafts: what drafts for a model, a smaller one, a head, or neither; declared and loaded beside it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from jax.sharding import Mesh

from jaxinfer.build.declared import config_file, declare_alone
from jaxinfer.build.folders import model_folder, named_folder
from jaxinfer.build.sized import LayersInLoop, Sized
from jaxinfer.config import EngineConfig
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ModelError
from jaxinfer.folder_files import read_object
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.eagle3 import Eagle3Config, parse_eagle3
from jaxinfer.models.eagle3_checkpoint import declared_eagle3, load_eagle3
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.runner.step.draft_model import check_draft, declared_draft, draft_shapes, with_draft
from jaxinfer.runner.step.stage import StagedModel, stage_meshes
from jaxinfer.speculation import Speculation
from jaxinfer.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class DraftSource:
    """A source of drafts for a model, before it is loaded. This has no weights: nothing drafts, or n-grams do."""

    def load(self, sized: Sized, mesh: Mesh, scan: LayersInLoop) -> LoadedModel | None:
        """sized: of the model that is drafted for, over all devices of a mesh. scan: `--scan-layers`."""


@dataclass(frozen=True)
class DraftModel(DraftSource):
    """A smaller model. config: over the mesh's parts."""

    folder: Path
    config: DecoderConfig

    def load(self, sized: Sized, mesh: Mesh, scan: LayersInLoop) -> LoadedModel:
        first, layout = stage_meshes(mesh)[0], sized.layout(scan)
        rules = sized.mesh.rules
        return load_model(self.folder, self.config, dtype=sized.dtype, mesh=first, rules=rules, layout=layout)


@dataclass(frozen=True)
class DraftHead(DraftSource):
    """An EAGLE-3 head. config: over the mesh's parts."""

    folder: Path
    config: Eagle3Config

    def load(self, sized: Sized, mesh: Mesh, scan: LayersInLoop) -> LoadedModel:
        return load_eagle3(self.folder, self.config, dtype=sized.dtype, mesh=mesh, rules=sized.mesh.rules)


def beside(
    model: StagedModel,
    draft: LoadedModel | None,
    shapes: EngineShapes,
    choose: Callable[[LoadedModel, EngineShapes], LoadedModel],
) -> StagedModel:
    """Return a model with what drafts for it in its first stage. choose: chooses the kernels of what drafts."""
    if draft is None:
        return model
    leading, own = model.parts[0], model.stages[0].shapes(shapes)
    draft = choose(draft, draft_shapes(with_draft(leading, draft), own))
    return StagedModel((with_draft(leading, draft), *model.parts[1:]))


def declare_drafts(config: EngineConfig, sized: Sized) -> DraftSource:
    """sized: the model that is drafted for. Raises ModelError for what cannot draft for it."""
    asked, parts, length = sized.shapes.drafting, sized.mesh.parts, sized.shapes.max_model_len
    if asked is None or asked.model is None:
        return DraftSource()
    folder = _folder_of_same_tokens(config, asked.model)
    if asked.method == "eagle3":
        head = declared_eagle3(folder, sized.decoder).over(*parts)
        check_draft(folder, sized.decoder, head.decoder, length)
        return DraftHead(folder, head)
    return DraftModel(folder, declared_draft(folder, sized.parts[0], length).over(*parts))  # beside the first stage


def _folder_of_same_tokens(config: EngineConfig, name: str) -> Path:
    """Return the folder of what drafts. Raises ModelError if its tokens are not those of the model."""
    folder, own = named_folder(name, None, "config.json"), config.load.tokenizer
    tokens = model_folder(config) if own is None else named_folder(own, None, "config.json")
    pair = [Tokenizer(one) for one in (tokens, folder) if (one / "tokenizer.json").is_file()]
    if len(pair) == 2 and pair[0].digest != pair[1].digest:
        raise ModelError(
            f"{name} cannot draft for {config.model}: its tokens are not the same. Take a draft model of the "
            "same family, or method ngram"
        )
    return folder


def drafts_alone(asked: Speculation, target: DecoderConfig, length: int) -> DecoderConfig | Eagle3Config | None:
    """Return the configuration of what drafts for a target in sequences of `length` tokens; None if no weights do. It
    may be a config.json alone, and is over no mesh; its tokens are not compared. Raises ModelError."""
    if asked.model is None:
        return None
    try:
        head = _head_alone(asked.model, target) if asked.method == "eagle3" else None
        draft = declare_alone(EngineConfig(asked.model)).config.at_context(length) if head is None else head.decoder
    except ModelError as error:
        hint = '; heads have "method": "eagle3"' if "Eagle3" in str(error) and asked.method != "eagle3" else ""
        raise ModelError(f"speculative_config: {asked.model}: {error}{hint}") from None
    check_draft(Path(asked.model), target, draft, length)
    return head or draft


def _head_alone(model: str, target: DecoderConfig) -> Eagle3Config:
    """Read a head; one that is a config.json alone has the target's embedding if that is as wide."""
    if (file := config_file(model)) is None:
        return declared_eagle3(model_folder(EngineConfig(model)), target)
    config = parse_eagle3(read_object(file), target)
    return replace(config, own_embedding=config.decoder.hidden_size != target.hidden_size)
