"""Tensors of quantised checkpoints that have no use here."""

KV_SCALES = (
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
    ".prob_scale",
    ".k_proj.output_scale",
    ".v_proj.output_scale",
)
"""Endings of names of scales for keys and values, which have no use where these are kept as they are computed."""
