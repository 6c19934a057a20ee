"""per_device: shard_map over all axes of a mesh that are not taken apart already."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh


def per_device(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function` over each device's part of its arguments. Within `over_data` they are parts of a shard's arrays, and
    specs may not name the axis `data`."""
    here = jax.sharding.get_abstract_mesh()
    apart = set() if here.empty else set(here.manual_axes)
    return jax.shard_map(
        function,
        mesh=here if apart else mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(mesh.axis_names) - apart,
        check_vma=False,
    )
