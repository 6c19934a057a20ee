"""Answer as `jaxinfer.plan.compile_worker` does, without compiling, and fail at the decode program:
`python -m tests.plan.failing_worker LOG FAULT`. A line of LOG is what a process was asked for."""

import json
import os
import pickle
import sys
import time

from jaxinfer.plan.compiled import MARK, label


def take_memory() -> None:
    held = bytearray(1 << 30)
    time.sleep(len(held) >> 24)


def print_words() -> None:
    for _ in range(600):
        print("words", flush=True)
        time.sleep(0.1)


def hang() -> None:
    os.close(1)
    time.sleep(60)


FAULTS = {
    "none": lambda: None,
    "time": lambda: time.sleep(60),
    "memory": take_memory,
    "words": print_words,
    "hang": hang,
    "death": lambda: sys.exit("it broke"),
}


def main(log: str, fault: str) -> None:
    request = pickle.load(sys.stdin.buffer)
    with open(log, "a") as file:
        print(*map(label, request.names), sep=", ", file=file)
    for name in request.names:
        print("words of a compiler")
        if name[0] == "decode" and fault == "error":
            print(MARK + json.dumps({"program": label(name), "error": "no"}), flush=True)
            continue
        if name[0] == "decode":
            FAULTS[fault]()
        sizes = {"peak": 1, "argument": 2, "alias": 3, "output": 4, "temporary": 5}
        values = {"program": label(name), "seconds": 1.5, **sizes}
        values["collectives"] = [["all-reduce", "bf16[8,64]", 1024, 3]]
        print(MARK + json.dumps(values), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
