"""PyTorch: training scripts that go on through revocations. Needs the extra ``torch``."""

from spotmpi.torch.distributed_optimizer import DistributedOptimizer
from spotmpi.torch.elastic_sampler import ElasticSampler
from spotmpi.torch.process_group import init_process_group, workers

__all__ = ["DistributedOptimizer", "ElasticSampler", "init_process_group", "workers"]
