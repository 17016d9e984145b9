"""Hierarchical accumulation with random weights, and its random inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_phrase.methods.accumulation.tree_attention import HierarchicalAccumulation


def build(heads: int = 2, width: int = 4, **options) -> HierarchicalAccumulation:
    torch.manual_seed(1)
    module = HierarchicalAccumulation(embed_dim=heads * width, num_heads=heads, **options).double()
    if module.leaf_weight.bias is not None:
        torch.nn.init.normal_(module.leaf_weight.bias)
    return module


def random_values(batch, module, dtype=torch.float64) -> Tensor:
    shape = (batch.batch_size, batch.num_nodes, module.num_heads, module.head_dim)
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


def random_states(batch, module, dtype=torch.float64) -> Tensor:
    shape = (batch.batch_size, batch.num_leaves, module.leaf_weight.in_features)
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


conventions = pytest.mark.parametrize("convention", ["paper", "released"])


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return result
