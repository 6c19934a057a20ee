"""Print how libtpu lays arrays out: `python -m tests.parallel.tpu_layouts FILE`, with a type and a shape a line."""

import sys
from pathlib import Path

import jax.numpy as jnp
from jax.experimental import topologies


def main(file: Path) -> None:
    for topology in ("v5e:2x2", "v5p:2x2x1", "v6e:2x4", "tpu7x:2x2x1"):
        device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
        for line in file.read_text().splitlines():
            kind, *shape = line.split()
            layout = device.client.get_default_layout(jnp.dtype(kind), tuple(map(int, shape)), device)
            print("LAYOUT", kind, *shape, layout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
