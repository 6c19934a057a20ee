"""LeadingRunner: the runner of the host that schedules, which has other hosts repeat every call."""

from collections.abc import Callable

from jaxinfer.engine.device.call_stream import CallWriter
from jaxinfer.engine.device.calls import Call, Reset, sampled_by
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.device.wrapping import WrappingRunner
from jaxinfer.engine.step.plan import StepResult


class LeadingRunner(WrappingRunner):
    """A Runner that sends each call to followers before `runner` performs it, so that no host waits for this one.

    send(message): takes the bytes of a call, as `Follower.apply` reads them. What it raises is a step fault; the reset
    that follows is sent as well. stream: number and digest of the calls so far. on_collected: is called with the number
    of a step's last call, once its results are there; on_failed: where it failed, and may raise a better reason than
    the device gives.
    """

    def __init__(
        self,
        runner: Runner,
        send: Callable[[bytes], None],
        on_collected: Callable[[int], None] = lambda number: None,
        on_failed: Callable[[], None] = lambda: None,
    ):
        super().__init__(runner)
        self.stream = CallWriter()
        self._send = send
        self._on_collected = on_collected
        self._on_failed = on_failed
        self._in_flight: dict[int, int] = {}
        """The number of the last call of each step, by its index."""

    def submit(self, call: Call) -> None:
        number = self.stream.number
        self._send(self.stream.write(call))
        if isinstance(call, Reset):
            self._in_flight.clear()
        self._runner.submit(call)
        if (index := sampled_by(call)) is not None:
            self._in_flight[index] = number

    def collect(self, index: int) -> StepResult:
        try:
            result = self._runner.collect(index)
        except Exception:
            self._on_failed()
            raise
        self._on_collected(self._in_flight.pop(index))
        return result
