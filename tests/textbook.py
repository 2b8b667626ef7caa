"""Optimizers as textbooks have them: slow, in float64, array by array, written apart from ours."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Adam:
    """Algorithm 1 of Kingma and Ba 2015; with ``decay``, algorithm 2 of Loshchilov and Hutter."""

    def __init__(self, beta1: float, beta2: float, eps: float, decay: float = 0.0) -> None:
        self.beta1, self.beta2, self.eps, self.decay = beta1, beta2, eps, decay
        self.t = 0
        self.m: dict[str, Array] = {}
        self.v: dict[str, Array] = {}

    def ratios(self, theta: dict[str, Array], g: dict[str, Array]) -> dict[str, Array]:
        """The corrected mean over the root of the corrected square, after one step more."""
        self.t += 1
        found = {}
        for key in theta:
            m = self.m.get(key, np.zeros_like(theta[key]))
            v = self.v.get(key, np.zeros_like(theta[key]))
            self.m[key] = self.beta1 * m + (1 - self.beta1) * g[key]
            self.v[key] = self.beta2 * v + (1 - self.beta2) * g[key] ** 2
            m_hat = self.m[key] / (1 - self.beta1**self.t)
            v_hat = self.v[key] / (1 - self.beta2**self.t)
            found[key] = m_hat / (np.sqrt(v_hat) + self.eps)
        return found

    def step(self, theta: dict[str, Array], g: dict[str, Array], alpha: float) -> dict[str, Array]:
        """The parameters after it."""
        ratios = self.ratios(theta, g)
        return {key: theta[key] - alpha * (ratios[key] + self.decay * theta[key]) for key in theta}


class Lamb(Adam):
    """Algorithm 2 of You et al. 2020, without a bound on the norm of weights."""

    def step(self, theta: dict[str, Array], g: dict[str, Array], alpha: float) -> dict[str, Array]:
        """The parameters after it."""
        after = {}
        for key, ratio in self.ratios(theta, g).items():
            whole = ratio + self.decay * theta[key]
            of_x = math.sqrt(sum(float(one) ** 2 for one in theta[key].ravel()))
            of_u = math.sqrt(sum(float(one) ** 2 for one in whole.ravel()))
            trust = of_x / of_u if of_x and of_u else 1.0
            after[key] = theta[key] - alpha * trust * whole
        return after
