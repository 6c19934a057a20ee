"""A file for `jaxinfer plan --calibration`, of the first device, where its kind is one of configs/chips or a CPU."""

import json

import jax

from benchmarks.calibrate import TINY, calibrate, grid_of
from benchmarks.device.context import Context
from jaxinfer.parallel.topology import TARGETS
from jaxinfer.runner.platform.values import platform_name


def measure(context: Context) -> None:
    """Writes the file beside the part's own. Raises ValueError where `plan` knows no such chip."""
    found = calibrate(chip_name(), TINY if context.form.name == "tiny" else grid_of(platform_name()))
    file = context.file.with_name(f"{found['chip']}.calibration.json")
    file.write_text(json.dumps(found, indent=1) + "\n")
    context.save(calibration=file.name)


def chip_name() -> str:
    """Return the first device's chip, a key of TARGETS."""
    kind, platform = jax.local_devices()[0].device_kind, platform_name()
    for name, target in TARGETS.items():
        if target.platform == platform and kind.startswith(target.kinds):
            return name
    raise ValueError(f"{kind}: no chip of configs/chips")
