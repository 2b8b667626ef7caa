"""PyTorch: trainings of torch modules that go on when workers vanish. Needs the extra ``torch``."""

from spotmpi.torch.distributed_optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
