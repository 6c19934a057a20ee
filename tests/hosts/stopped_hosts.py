"""Two hosts in a process that is to be stopped for a while: `python -m tests.hosts.stopped_hosts` prints what was lost
once a line is written to it."""

from jaxinfer.engine.device.calls import Reset
from tests.hosts.cluster import QUICK, cluster


def main() -> None:
    with cluster(1, timing=QUICK) as hosts:
        print("serving", flush=True)
        input()
        hosts.runner.submit(Reset())
        reasons = hosts.losses.reasons + hosts.hosts[0].losses.reasons
    print(reasons)


if __name__ == "__main__":
    main()
