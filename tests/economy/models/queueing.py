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
    think_s: Sequence[float],
    service_s: float,
    servers: int,
    updates: int,
    think: Draw,
    service: Draw,
) -> float:
    """Updates per second of one worker for each of ``think_s``, the first tenth left out."""
    arrivals = [(think(mean), worker, 0) for worker, mean in enumerate(think_s)]
    heapq.heapify(arrivals)
    free = [0.0] * servers
    done, began, now = 0, 0.0, 0.0
    while done < updates:
        now, worker, server = heapq.heappop(arrivals)
        if server == servers:  # the last one is through with it
            done += 1
            if done == updates // 10:
                began = now
            heapq.heappush(arrivals, (now + think(think_s[worker]), worker, 0))
        else:
            free[server] = max(now, free[server]) + service(service_s / servers)
            heapq.heappush(arrivals, (free[server], worker, server + 1))
    return (updates - updates // 10) / (now - began)


State = tuple[tuple[int, ...], ...]
"""The types of the workers that wait at each server, in the order of their coming."""


def chained(
    counts: Sequence[int], think_s: Sequence[float], service_s: float, servers: int
) -> float:
    """Updates per second from the stationary distribution of the Markov chain, order and all."""
    empty: State = ((),) * servers
    index: dict[State, int] = {empty: 0}
    flows: list[tuple[int, State, float]] = []
    todo = deque([empty])
    leaving: dict[int, float] = {}
    each = servers / service_s
    while todo:
        state = todo.popleft()
        moves: list[tuple[State, float]] = []
        for k, number in enumerate(counts):
            thinking = number - sum(queue.count(k) for queue in state)
            if thinking:
                moves.append((((*state[0], k), *state[1:]), thinking / think_s[k]))
        for i, queue in enumerate(state):
            if not queue:
                continue
            after = list(state)
            after[i] = queue[1:]
            if i + 1 < servers:
                after[i + 1] = (*state[i + 1], queue[0])
            else:
                leaving[index[state]] = each
            moves.append((tuple(after), each))
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
    return float(sum(shares[i] * rate for i, rate in leaving.items()))
