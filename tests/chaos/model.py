"""The model of the chaos tests: small, deterministic, with two dtypes and an odd shape.

A wide one has as many more parameters as it takes for data planes to do their best.
"""

import hashlib

import numpy as np

SAMPLES = 331

_random = np.random.default_rng(3)
X = _random.normal(size=(SAMPLES, 5)).astype(np.float32)
# No BLAS: it may raise floating point flags on finite numbers, and warnings are errors.
Y = ((X * np.arange(5, dtype=np.float32)).sum(1) + 0.5).astype(np.float32)


_WIDE = _random.normal(size=17_389).astype(np.float32)


def params(wide: bool = False) -> dict[str, np.ndarray]:
    """Where training begins."""
    more = {"wide": np.zeros_like(_WIDE)} if wide else {}
    return {"w": np.zeros(5, np.float32), "b": np.zeros((), np.float64), **more}


def gradient(params, samples):
    """Mean squared error over ``samples``, and its gradient."""
    x, y = X[samples], Y[samples]
    error = (x * params["w"]).sum(1) + np.float32(params["b"]) - y
    grads = {"w": (error[:, None] * x).mean(0), "b": np.array(error.mean(), np.float64)}
    if "wide" in params:
        grads["wide"] = np.float32(error.mean()) * _WIDE
    return float((error**2).mean()), grads


def values(params) -> np.ndarray:
    """All of them but the wide ones, as one array."""
    return np.concatenate([params[key].ravel() for key in ("b", "w")])


def fingerprint(params) -> str:
    """Equal if and only if every bit is."""
    return hashlib.sha256(b"".join(params[key].tobytes() for key in sorted(params))).hexdigest()[
        :16
    ]
