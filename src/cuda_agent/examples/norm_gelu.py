"""LayerNorm, then GELU: a row reduction with a pointwise epilogue."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return nn.functional.gelu(self.norm(x))


def get_inputs():
    return [torch.randn(2048, 768)]


def get_init_inputs():
    return [768]
