"""processor: what code that is compiled for this machine's processor may rest on."""

import hashlib
from pathlib import Path


def processor() -> str:
    """A digest of what this processor can do; `any` where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "any"
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:12]
