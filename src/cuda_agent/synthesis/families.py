"""Families of operators, for caps, splits and tiers: tables by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from cuda_agent.synthesis.words import key_of


class Family(StrEnum):
    """What an operator is about; the first that fits names a task's family."""

    LINALG = "linalg"
    FFT = "fft"
    RECURRENT = "recurrent"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    MATMUL = "matmul"
    SORT = "sort"
    SCAN = "scan"
    LOSS = "loss"
    POOL = "pool"
    RESAMPLE = "resample"
    NORM = "norm"
    SOFTMAX = "softmax"
    EMBEDDING = "embedding"
    INDEXING = "indexing"
    REDUCTION = "reduction"
    DISTANCE = "distance"
    LAYOUT = "layout"
    ACTIVATION = "activation"
    ELEMENTWISE = "elementwise"


_PATTERNS: tuple[tuple[Family, str], ...] = (
    (Family.FFT, r"^(r|ir|i|h|ih)?fft|stft|fftshift"),
    (
        Family.LINALG,
        r"linalg|cholesky|^qr$|^svd|eig|^inv(erse|ex)?$|^det$|slogdet|logdet|solve|pinv|lstsq|^lu(factor|unpack)?$|"
        r"matrixexp|matrixpower|householder|ormqr|geqrf|pinverse|trace$",
    ),
    (Family.RECURRENT, r"lstm|gru(cell)?$|^rnn|recurrent"),
    (Family.ATTENTION, r"attention|attn|transformer|rotary|sdpa|alibi"),
    (
        Family.LOSS,
        r"loss$|crossentropy|nll|kldiv|hinge|tripletmargin|gaussiannll|poissonnll|ctc|mse|huber|smoothl1",
    ),
    (Family.CONVOLUTION, r"^conv|conv\dd|convtranspose|bilinearconv"),
    (
        Family.MATMUL,
        r"matmul|^mm$|^bmm$|addmm|baddbmm|addbmm|einsum|linear$|bilinear$|^mv$|addmv|^dot$|inner|outer|ger$|addr|"
        r"kron|tensordot|chainmatmul|multidot|mlp|feedforward|expert|gate$|router|head$|lora",
    ),
    (Family.SORT, r"sort|topk|kthvalue|median|quantile|unique|searchsorted|bucketize|histc|mode$|msort"),
    (Family.SCAN, r"^cum|logcumsumexp|cumulative|scan|trapz|trapezoid|^diff$"),
    (Family.POOL, r"pool"),
    (Family.RESAMPLE, r"upsample|interpolate|gridsample|affinegrid|pixelshuffle|pixelunshuffle|fold$|unfold"),
    (Family.SOFTMAX, r"softmax|softmin|logsumexp"),
    (Family.NORM, r"norm(\dd)?$|normalize|renorm|weightnorm"),
    (Family.DISTANCE, r"cdist|pdist|distance|similarity|dist$"),
    (Family.EMBEDDING, r"embed|onehot"),
    (
        Family.INDEXING,
        r"gather|scatter|index|take|masked|where|select|nonzero|(?<!in)(?<!out)put|bincount|roll|tril|triu|diag",
    ),
    (
        Family.REDUCTION,
        r"^(sum|mean|prod|amax|amin|max|min|aminmax|any|all|argmax|argmin|var|std|varmean|stdmean|nansum|nanmean|"
        r"countnonzero|norm|vectornorm|cov|corrcoef)$",
    ),
    (
        Family.LAYOUT,
        r"permute|transpose|flip|rot90|cat$|stack|concat|repeat|tile|pad|chunk|split|reshape|view|flatten|shuffle|"
        r"movedim|swap|expand|broadcast|meshgrid|cartesian|block",
    ),
    (
        Family.ACTIVATION,
        r"relu|elu$|selu|celu|gelu|silu|swish|mish|sigmoid|tanh|softplus|softsign|shrink|glu|hard|threshold|act",
    ),
)


def family_of(op: str) -> Family:
    """The family of an operator by its public name."""
    key = key_of(op)
    if op.startswith(("torch.linalg", "torch.fft")):
        return Family.LINALG if "linalg" in op else Family.FFT
    return next((family for family, pattern in _PATTERNS if re.search(pattern, key)), Family.ELEMENTWISE)


def main_family(ops: Iterable[str]) -> Family:
    """The family that names a task: the weightiest among its operators'."""
    order = list(Family)
    return min((family_of(op) for op in ops), key=order.index, default=Family.ELEMENTWISE)


def kin_of(op: str) -> str:
    """An operator without its number of dimensions: ``AvgPool2d`` and ``F.avg_pool3d`` are kin."""
    return re.sub(r"(?<=[a-z])[123]d$", "", key_of(op))


HELD_OUT = {
    "groupnorm": "a norm",
    "cumprod": "a scan",
    "lppool": "a pool",
    "smoothl1loss": "a loss",
    "celu": "an activation",
    "logsumexp": "a reduction",
    "convtranspose": "a convolution",
    "bilinear": "a product",
    "pixelunshuffle": "a move of elements",
    "cdist": "a distance",
    "rfft": "a transform",
    "gru": "a recurrence",
}
"""Kin that no training task holds: what is learnt is measured on operators never seen."""


def is_held_out(ops: Iterable[str]) -> bool:
    """Whether a task holds an operator that training must not see."""
    return any(kin_of(op) in HELD_OUT for op in ops)
