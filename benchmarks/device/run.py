"""One part in its own process: `python -m benchmarks.device.run PART --form FORM --work DIR --file FILE ...`."""

import argparse
import json
from importlib import import_module
from pathlib import Path

from benchmarks.device.context import Context
from benchmarks.device.forms import FORMS
from benchmarks.device.parts import BY_NAME


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(BY_NAME))
    parser.add_argument("--form", choices=list(FORMS), required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--began", type=float, required=True, help="when the process was started, seconds since 1970")
    parser.add_argument("--deadline", type=float, required=True, help="when it will be ended")
    parser.add_argument("--suite", required=True, help="the suite's own command line")
    parser.add_argument("--hardware", type=json.loads, help="the devices, where they are known; as JSON")
    parser.add_argument("--acceptance", type=float, default=0.8, help="how often drafts are kept")
    asked = parser.parse_args()
    part = BY_NAME[asked.part]
    context = Context(
        name=part.name,
        form=FORMS[asked.form],
        options=part.options,
        work=asked.work,
        file=asked.file,
        began=asked.began,
        deadline=asked.deadline,
        command=asked.suite,
        hardware=asked.hardware,
        acceptance=asked.acceptance,
    )
    import_module(f"benchmarks.device.{part.module}").measure(context)
    context.save(complete=True, seconds=round(context.seconds_since_start, 2))


if __name__ == "__main__":
    main()
