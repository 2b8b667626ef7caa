"""Slower ways to what `server_queue` computes: a simulation and a Markov chain."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

Draw = Callable[[float], float]
"""A random time of the mean that it is given."""


def exponential(seed: int) -> Draw:
    source = random.Random(seed)
    return lambda mean: source.expovariate(1 / mean)


def regular(seed: int, variation: float) -> Draw:
    """Times whose standard deviation is ``variation`` of the mean."""
    source, shape = random.Random(seed), 1 / variation**2
    return lambda mean: source.gammavariate(shape, mean / shape)


def constant(mean: float) -> float:
    return mean


def simulated(
    think_s: Sequence[float], service_s: float, updates: int, think: Draw, service: Draw
) -> float:
    """Updates per second of one worker for each of ``think_s``, the first tenth left out."""
    arrivals = [(think(mean), worker) for worker, mean in enumerate(think_s)]
    heapq.heapify(arrivals)
    free = began = 0.0
    for done in range(1, updates + 1):
        now, worker = heapq.heappop(arrivals)
        free = max(now, free) + service(service_s)
        if done == updates // 10:
            began = free
        heapq.heappush(arrivals, (free + think(think_s[worker]), worker))
    return (updates - updates // 10) / (free - began)


State = tuple[int, ...]
"""The types of the workers that wait at the server, in the order of their coming."""


def chained(counts: Sequence[int], think_s: Sequence[float], service_s: float) -> float:
    """Updates per second from the stationary distribution of the Markov chain, order and all."""
    index: dict[State, int] = {(): 0}
    flows: list[tuple[int, State, float]] = []
    todo: deque[State] = deque([()])
    while todo:
        state = todo.popleft()
        moves: list[tuple[State, float]] = []
        for k, number in enumerate(counts):
            if thinking := number - state.count(k):
                moves.append(((*state, k), thinking / think_s[k]))
        if state:
            moves.append((state[1:], 1 / service_s))
        for target, rate in moves:
            if target not in index:
                index[target] = len(index)
                todo.append(target)
            flows.append((index[state], target, rate))
    generator = np.zeros((len(index), len(index)))
    for origin, target, rate in flows:
        generator[origin, index[target]] += rate
        generator[origin, origin] -= rate
    system = np.vstack([generator.T, np.ones(len(index))])
    wanted = np.zeros(len(index) + 1)
    wanted[-1] = 1
    shares = np.linalg.lstsq(system, wanted)[0]
    return float((1 - shares[0]) / service_s)
