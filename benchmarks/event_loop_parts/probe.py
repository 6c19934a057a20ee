"""A process that asks for /healthz over and over: `python -m benchmarks.event_loop_parts.probe HOST PORT`.

Each line on standard input begins a new measurement, and prints that of the time before it: the longest answer, the
99th percentile and the median, in milliseconds, and their number.
"""

import select
import socket
import sys
import time

_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PAUSE = 0.002


def main() -> None:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times: list[float] = []
    while True:
        begun = time.perf_counter()
        connection.sendall(_REQUEST)
        if not connection.recv(65536).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the probe was not answered")
        times.append(time.perf_counter() - begun)
        if select.select([sys.stdin], [], [], _PAUSE)[0]:
            if not sys.stdin.readline():
                return
            print(_described(sorted(times)), flush=True)
            times = []


def _described(times: list[float]) -> str:
    shown = (times[-1], times[int(0.99 * (len(times) - 1))], times[len(times) // 2])
    return " ".join(f"{1000 * value:.3f}" for value in shown) + f" {len(times)}"


if __name__ == "__main__":
    main()
