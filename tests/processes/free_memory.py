"""Give the heap's free memory back: `python -m tests.processes.free_memory`."""

import psutil

from jaxinfer import heap


def main() -> None:
    held = [bytearray(100_000) for _ in range(1000)]
    _above = bytearray(100_000)  # so that they are not given back when they are freed
    allocated, resident = heap.allocated(), psutil.Process().memory_info().rss
    del held
    assert allocated - heap.allocated() > 90_000_000
    heap.release()
    assert resident - psutil.Process().memory_info().rss > 80_000_000


if __name__ == "__main__":
    main()
