"""When two neighbouring calls may change places without any input telling: rules, by name.

A mutant that swaps two calls and cannot be told from the original is a defect of the task, unless one of
these identities explains it. Each rule names the identity; nothing is measured here.
"""

from __future__ import annotations

from cuda_agent.synthesis.words import key_of, words

_MONOTONE = words(
    """
    relu relu6 leakyrelu elu celu selu sigmoid tanh softplus hardtanh hardsigmoid logsigmoid softsign
    clamp clampmin clampmax clip exp exp2 expm1 log log1p log2 log10 sqrt atan asinh erf floor ceil
    round trunc threshold rrelu sinh cbrt sign
    """
)
_ELEMENTWISE = _MONOTONE | words(
    """
    gelu silu mish hardswish hardshrink softshrink tanhshrink abs neg square sin cos tan reciprocal
    rsqrt pow dropout cosh lgamma digamma sinc erfc erfinv float half bfloat16 double to type
    """
)
_LAYOUT = words(
    """
    view reshape flatten unflatten permute transpose t mt movedim swapaxes swapdims unsqueeze squeeze
    expand broadcastto repeat repeatinterleave tile flip fliplr flipud rot90 roll pixelshuffle
    pixelunshuffle channelshuffle narrow select indexselect getitem chunk split contiguous diagonal
    unfold gather take takealongdim adjoint ravel asstrided
    """
)
_ORDER = words(
    """
    maxpool1d maxpool2d maxpool3d adaptivemaxpool1d adaptivemaxpool2d adaptivemaxpool3d max amax min
    amin cummax cummin sort topk median kthvalue maximum minimum aminmax
    """
)
_LINEAR = words(
    """
    mm matmul rmatmul bmm einsum dot mv inner outer kron sum mean cumsum avgpool1d avgpool2d avgpool3d
    adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d interpolate upsample fold unfold diff
    trapezoid cumulativetrapezoid conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d
    linear tensordot tril triu trace logcumsumexp pixelshuffle pixelunshuffle pad constantpadnd
    """
)
_SCALE = words("mul rmul multiply div truediv divide neg")
_SHIFT = words("add radd sub subtract")
_HOMOGENEOUS = words("relu leakyrelu abs prelu") | _ORDER
_REDUCTIONS = words("sum mean amax amin max min prod logsumexp any all")


def rule_for(first: str, second: str) -> str:
    """The identity by which two calls may change places; empty where none is known.

    Args:
        first, second: public names (``torch.nn.functional.relu``), in either order.
    """
    a, b = key_of(first), key_of(second)
    for one, other in ((a, b), (b, a)):
        if one in _ELEMENTWISE and other in _LAYOUT:
            return "elementwise functions commute with moves of elements"
        if one in _MONOTONE and other in _ORDER:
            return "monotone functions commute with order statistics"
        if one in _SCALE and other in _LINEAR | _LAYOUT | _SCALE:
            return "scaling commutes with linear maps"
        if one in _SCALE and other in _HOMOGENEOUS:
            return "scaling commutes with positively homogeneous functions"
        if one in _SHIFT and other in _LAYOUT | _SHIFT | _ORDER:
            return "shifts commute with each other, moves of elements and order statistics"
        if one in _LAYOUT and other in _LAYOUT | _LINEAR | _ORDER:
            return "moves of elements commute with what acts along other dimensions"
    if a in _REDUCTIONS and b in _REDUCTIONS:
        return "reductions over different dimensions commute"
    if a in _LINEAR and b in _LINEAR:
        return "linear maps along different dimensions commute"
    return ""


NO_EFFECT = words(
    """
    contiguous to float half bfloat16 double type typeas clone detach view reshape flatten unflatten
    squeeze unsqueeze expand dropout getitem get setitem size dim numel requiresgrad device dtype shape
    expandas broadcastto identity
    """
)
"""Calls that may give back what they got (a cast to the type at hand): dropping them shows nothing."""
