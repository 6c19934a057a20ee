"""Placement of a layer's experts in slots: each device has equally many, and each slot an expert or a copy of one. No
jax.

A placement is [P] int, the expert of each slot; slots lie on the devices in order.
"""

import numpy as np


def first_placement(count: int, redundant: int) -> tuple[int, ...]:
    """Before any load is known: every expert in order, then copies of the first."""
    return (*range(count), *range(redundant))


def place_by_load(load: np.ndarray, slots: int, devices: int) -> np.ndarray:
    """A placement of experts that have got `load` tokens, [E]: those with the most tokens a copy are copied, and copies
    are dealt out, the largest first, to the device with the fewest tokens that has room and not this expert.

    It is the greedy way of DeepSeek's EPLB (github.com/deepseek-ai/EPLB), without groups of nodes.
    """
    copies = np.ones(len(load), np.int64)
    for _ in range(slots - len(load)):
        copies[np.argmax(np.where(copies < devices, load / copies, -1.0))] += 1
    each = load / copies
    room = slots // devices
    held: list[list[int]] = [[] for _ in range(devices)]
    tokens = np.zeros(devices)
    for expert in np.argsort(-each, kind="stable").tolist():
        for _ in range(copies[expert]):
            device = min(range(devices), key=lambda d: (len(held[d]) >= room, expert in held[d], tokens[d], d))
            held[device].append(expert)
            tokens[device] += each[expert]
    return np.array([expert for experts in held for expert in experts])


def device_tokens(load: np.ndarray, placement: np.ndarray, devices: int) -> np.ndarray:
    """Tokens that each device would compute of experts with `load`, [E], whose copies share their tokens equally."""
    copies = np.bincount(placement, minlength=len(load))
    return (load / copies)[placement].reshape(devices, -1).sum(axis=1)


def slots_of(placement: np.ndarray, count: int, most: int) -> np.ndarray:
    """[E, most] int32: the slots that hold each of `count` experts, -1 behind the last."""
    found = np.full((count, most), -1, np.int32)
    held = np.zeros(count, np.int64)
    for slot, expert in enumerate(placement):
        found[expert, held[expert]] = slot
        held[expert] += 1
    return found
