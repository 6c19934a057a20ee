"""Starts of `jaxinfer serve` over the small model: with an empty compile cache, and with what that left; by part."""

from benchmarks.device.context import Context
from benchmarks.device.engine import small_folder
from benchmarks.startup import start_once


def measure(context: Context) -> None:
    """Seconds from the start of the process until /readyz answers, by part, and MiB of host memory then; readiness
    waits for all programs, and for those of few sizes."""
    folder, _ = small_folder(context)
    form, found = context.form, dict[str, object]()
    flags = [str(folder), "--max-num-seqs", str(form.slots), "--max-model-len", str(form.max_model_len)]
    for kind, when in (("cold", "all"), ("warm", "all"), ("first-cold", "first")):
        cache = context.work / f"starts-{when}"
        started = start_once(cache, [*flags, "--compile", when], context.work / "starts.log")
        found[kind] = {"seconds": started.seconds, "mib": started.mib}
        context.save(starts=found)
