"""The model of the chaos tests: small, deterministic, with two dtypes and an odd shape."""

import hashlib

import numpy as np

SAMPLES = 331

_random = np.random.default_rng(3)
X = _random.normal(size=(SAMPLES, 5)).astype(np.float32)
Y = (X @ np.arange(5, dtype=np.float32) + 0.5).astype(np.float32)


def params() -> dict[str, np.ndarray]:
    """Where training begins."""
    return {"w": np.zeros(5, np.float32), "b": np.zeros((), np.float64)}


def gradient(params, samples):
    """Mean squared error over ``samples``, and its gradient."""
    x, y = X[samples], Y[samples]
    # No BLAS: it may raise floating point flags on finite numbers, and warnings are errors.
    error = (x * params["w"]).sum(1) + np.float32(params["b"]) - y
    grads = {"w": (error[:, None] * x).mean(0), "b": np.array(error.mean(), np.float64)}
    return float((error**2).mean()), grads


def values(params) -> np.ndarray:
    """All of them, as one array."""
    return np.concatenate([params[key].ravel() for key in sorted(params)])


def fingerprint(params) -> str:
    """Equal if and only if every bit is."""
    return hashlib.sha256(b"".join(params[key].tobytes() for key in sorted(params))).hexdigest()[
        :16
    ]
