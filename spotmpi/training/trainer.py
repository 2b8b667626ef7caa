"""`Trainer`: trains one model on all workers, in steps that survive the loss of workers."""

from __future__ import annotations

from typing import Any, TypeVar

from spotmpi.errors import UsageError
from spotmpi.protocol.sampler import Indices
from spotmpi.training.optimizing import Optimizing

__all__ = ["Trainer"]

P = TypeVar("P")


class Trainer(Optimizing[P]):
    """Trains one model on all workers of the job, and goes on if any of them are lost.

    ``params``: list or dict of arrays, or nested lists, dicts and dataclasses of arrays, which then
        have names such as "encoder/w1". All workers begin with those of the first worker.
    ``optimizer``: one of `spotmpi.optimizers`. Its ``lr`` is meant for the number of workers at the
        start, or for ``lr_reference`` workers.
    ``strategy``: how workers synchronise; `SSGD` if not given. ``--strategy`` and ``--policy``
        replace it.
    ``strategies``: other strategies that workers may change to; see `strategy`.
    ``policy``: decides on such changes; one of `spotmpi.policies`. ``--policy`` replaces it, and
        ``--strategy`` turns it off.
    ``seed``: decides the order of samples.
    ``scale_lr``: how the learning rate follows the number of workers in each step's average:
        "linear", "sqrt" (with its square root) or "none".
    ``lr_warmup``: number of steps in which the learning rate comes to a new value.
    ``check_finite``: refuse gradients with NaN or infinity.
    ``bucket_mb``: MB of gradients summed at a time, about, from the last ones on; see `ready`.

    A context manager: entering the block starts MPI, unless the script runs alone. Leaving it ends
    the protection; the code after it is ordinary code. Both are collective.
    """

    @property
    def params(self) -> P:
        """The live parameters, in the structure they were given in. Read them; do not write.

        Parameters of half precision are rounded from the trained ones after each step.
        """
        return self._training.model.params

    @property
    def model(self) -> P:
        """The model that all workers agree on after a round. Checkpoints keep it. Read only.

        It is the same arrays as `params`, unless each worker trains its own model around this one
        (as with `SMA`, `EASGD` or `DiLoCo`). Evaluate and save this one.
        """
        return self._training.model.model

    @property
    def gradients(self) -> P:
        """Arrays to compute gradients into, always the same, in the structure of the parameters.

        ``step(trainer.gradients)`` copies nothing where workers share memory. Write all of them for
        each step: a round may use their memory. Inside the block only.
        """
        self._connected("gradients", alone=True)
        return self._training.gradient.arrays(self._training.sync.memory.shared)

    def ready(self, name: Any, grad: Any) -> None:
        """Give one gradient of the next step as soon as the backward pass has it.

        ``name`` is its key in ``params``, its index in a list, or its name if ``params`` are
        nested. The gradients given so far are summed over all workers while the script computes the
        others, bucket by bucket, from the last parameters on. Then call `step` with the gradients
        that were not given, if any. Do not change the array until `step` returns. Make no other
        call in between that needs all workers. Collective in effect, and short: it waits for the
        others only if workers join or leave before this step.
        """
        self._check_batch("ready")
        if self._training.gradient.micro_batches:
            raise UsageError(
                f"worker {self.worker}: trainer.ready() came after trainer.accumulate(), in step "
                f"{self.steps}: give the gradient of the rest of the batch to trainer.step()"
            )
        participant = self._connected("ready()")
        self._participant = self._run(participant.ready(name, grad))

    def accumulate(self, grads: P, samples: int, loss: float | None = None) -> None:
        """Give the gradient of a micro-batch, which is a part of this worker's batch. Local.

        ``grads`` has the form that `step` takes, and is the mean over ``samples`` samples. It
        counts in the next step by these samples. Give that step the gradient of the rest of the
        batch, or none if nothing is left. The script may use the arrays again at once.
        """
        self._connected("accumulate()", alone=True)
        self._check_batch("accumulate")
        gradient, batch = self._training.gradient, self._batch
        if gradient.pieces:
            raise UsageError(
                f"worker {self.worker}: trainer.accumulate() came after trainer.ready(), in step "
                f"{self.steps}: give whole gradients, or each array by itself"
            )
        parts = gradient.micro_batches
        parts.add(grads, samples, self._number(loss))
        if batch is not None and parts.samples > len(batch):
            raise UsageError(
                f"worker {self.worker}: {parts.samples} samples were accumulated in step "
                f"{self.steps}, whose batch has {len(batch)}: give each of them once"
            )

    def step(self, grads: P | None = None, loss: float | None = None) -> None:
        """Average ``grads`` over all workers and apply the average: one step. Collective, blocking.

        ``grads`` has the structure, shapes and dtypes of the parameters, and is the mean over this
        worker's batch. Outside of `batches` every worker counts as one sample. After `ready`, give
        a dict of the remaining gradients. After `accumulate`, give the gradient of the rest of the
        batch. Give none if nothing remains. Returns when the step is committed, even if workers die
        meanwhile. The property `loss` is then the mean over the workers.
        """
        participant = self._connected("step()")
        self._check_batch("step")
        loss = self._number(loss)
        if self._training.gradient.micro_batches:
            grads, loss = self._whole_batch(grads, loss)
        training = self._training
        whole = training.gradient.completed(grads, training.sync.give)
        self._participant = self._run(participant.step(whole, loss))

    @property
    def _batch(self) -> Indices | None:
        """The batch that is being computed; None outside of a loop over batches."""
        return self._training.batch if self._training.position.inside else None

    def _whole_batch(self, grads: P | None, loss: float | None) -> tuple[P, float | None]:
        """Return the gradient and the loss of the whole batch. ``grads``: the gradient of the
        samples that were not accumulated, if there are any."""
        parts, batch = self._training.gradient.micro_batches, self._batch
        left = 0 if batch is None else len(batch) - parts.samples
        if batch is not None and left and grads is None:
            raise UsageError(
                f"worker {self.worker}: {parts.samples} samples were accumulated in step "
                f"{self.steps}, whose batch has {len(batch)}: accumulate the rest, or give its "
                "gradient to trainer.step()"
            )
        if left:
            parts.add(grads, left, loss)
        elif grads is not None:
            raise UsageError(
                f"worker {self.worker}: trainer.step() was given a gradient in step {self.steps}, "
                "of which all was accumulated: call it without"
            )
        return parts.gradient, parts.loss if left or loss is None else loss
