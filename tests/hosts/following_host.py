"""One of two followers, which prints why it lost the others: `python -m tests.hosts.following_host ADDRESS NUMBER`."""

import sys

from jaxinfer.engine.device.follower import Follower
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.hosts.following import HostFollower
from tests.engine.small import small_shapes
from tests.hosts.cluster import FACTS


def main(address: str, number: int) -> None:
    with HostFollower(3, number, FACTS, lost=lambda reason: print(reason, flush=True)) as stream:
        stream.join(address)
        stream.run(Follower(SimulatedRunner(small_shapes())))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
