"""Architectures that are known and refused, by their names in config.json, with the reason."""

_LATENT = "its attention is latent (MLA), which is not supported yet"
_SPARSE = "its attention is sparse, which is not supported yet"
_STATE = "its layers keep a state, which is not supported yet"
_ENCODER = "it has an encoder; only decoders are served"

_BY_REASON = {
    _LATENT: (
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MiniCPM3ForCausalLM",
    ),
    _SPARSE: ("DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"),
    _STATE: (
        "BambaForCausalLM",
        "FalconH1ForCausalLM",
        "FalconMambaForCausalLM",
        "JambaForCausalLM",
        "KimiLinearForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "NemotronHForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "RecurrentGemmaForCausalLM",
        "RwkvForCausalLM",
        "Zamba2ForCausalLM",
    ),
    _ENCODER: (
        "BartForConditionalGeneration",
        "BertForMaskedLM",
        "BertModel",
        "T5ForConditionalGeneration",
        "T5GemmaForConditionalGeneration",
        "WhisperForConditionalGeneration",
    ),
    "its layers share KV and see embeddings of their own, which is not supported yet": (
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
    ),
    "its layers attend in chunks, which is not supported yet": (
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
    ),
    # Where users of an old model may want its successor.
    "its successors are supported: GlmForCausalLM, Glm4ForCausalLM": ("ChatGLMModel",),
    "its successor is supported: Phi3ForCausalLM": ("PhiForCausalLM",),
    "its successor is supported: Starcoder2ForCausalLM": ("GPTBigCodeForCausalLM",),
    "its successors are supported: Qwen2ForCausalLM, Qwen3ForCausalLM": ("QWenLMHeadModel",),
}
REFUSED = {name: reason for reason, names in _BY_REASON.items() for name in names}
