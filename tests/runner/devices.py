"""Programs over several devices, in processes of their own whose CPU is as many."""

import os
import subprocess
import sys


def run_on_devices(program: str, devices: int) -> None:
    """Fails with the end of what the program told where it fails."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
