"""The process of a host that does not schedule: it repeats the calls of host 0's runner."""

from jaxinfer.console.log import start_log
from jaxinfer.console.progress import build_progress
from jaxinfer.engine.device.follower import Follower
from jaxinfer.processes.child import Parent, run_to_end
from jaxinfer.processes.garbage import forget_garbage
from jaxinfer.signals import end_at_once_on_signals, end_process


def main() -> None:
    """Runs until host 0 ends, until a host is lost, or until the parent has gone."""
    end_at_once_on_signals()
    parent = Parent()

    def run() -> int:
        start_log(parent.server)
        from jaxinfer.build import build_follower
        from jaxinfer.processes.hosts import following_team, timing_of

        timing = timing_of(parent.engine, parent.server)
        with parent.beats_in_thread(), following_team(parent.engine, timing) as (team, stream):
            with build_progress() as progress:
                runner = build_follower(parent.engine, team, progress)
                forget_garbage()
            team.agree("ready", {})
            parent.tell({"ready": ""})
            stream.run(Follower(runner))
            end_process(0)  # host 0 waits for the stream's end, and JAX aborts processes that outlive host 0

    run_to_end(parent, run)


if __name__ == "__main__":
    main()
