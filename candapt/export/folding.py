"""Batch norms of a traced network folded into the layers before them, or made plain multiplications and additions."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

ATEN = torch.ops.aten
NORM = ATEN.batch_norm.default
LAYERS = (
    *(ATEN.linear.default, ATEN.conv1d.default, ATEN.conv2d.default, ATEN.conv3d.default),
    *(ATEN.conv1d.padding, ATEN.conv2d.padding, ATEN.conv3d.padding),
)  # whose second argument is the weight, with the output channels first, and whose third is the bias
PASSED_OVER = (ATEN.contiguous.default, ATEN.clone.default)  # they change the layout in memory and no value


@torch.no_grad()
def fold_batch_norms(traced: fx.GraphModule) -> fx.GraphModule:
    """Rewrite a graph of `torch.export` in place, so that it has no batch norm; what nothing uses is removed."""
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target is NORM:
            scale, shift = _affine(traced, node)
            layer = _layer_before(node.args[0])
            if layer is not None:
                _fold(traced, layer, scale, shift)
                node.replace_all_uses_with(node.args[0])
            else:
                node.replace_all_uses_with(_multiply_and_add(traced, node, scale, shift))
            traced.graph.erase_node(node)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return _without_unused(traced)


def _affine(traced: fx.GraphModule, norm: fx.Node) -> tuple[Tensor, Tensor]:
    """What a batch norm in evaluation multiplies by and adds, each of shape (channels,), in double precision."""
    weight, bias, mean, variance, training, _, eps = cast(Sequence[Any], norm.args)[1:8]
    if training:
        raise ValueError("a batch norm in training cannot be folded")
    mean, variance = (_value(traced, each).double() for each in (mean, variance))
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * _value(traced, weight).double()
    return scale, -mean * scale + (0 if bias is None else _value(traced, bias).double())


def _layer_before(node: Any) -> fx.Node | None:
    """The linear layer or convolution whose output goes nowhere but into a batch norm; None if there is none."""
    while len(node.users) == 1 and node.op == "call_function":
        if node.target in LAYERS:
            weight = node.args[1]
            # A weight that another layer uses too, or that is computed, must stay as it is.
            return node if weight.op == "get_attr" and len(weight.users) == 1 else None
        if node.target not in PASSED_OVER:
            return None
        node = node.args[0]
    return None


def _fold(traced: fx.GraphModule, layer: fx.Node, scale: Tensor, shift: Tensor) -> None:
    """Let a layer compute what the batch norm made of its output."""
    inputs, weight, *others = layer.args
    old = _value(traced, weight)
    bias = others[0] if others else None
    moved = shift if bias is None else shift + scale * _value(traced, bias).double()
    scaled = old.double() * scale.reshape(-1, *[1] * (old.dim() - 1))
    with traced.graph.inserting_before(layer):
        named = _constants(traced, layer.name, {"weight": scaled, "bias": moved}, old.dtype)
    layer.args = (inputs, *named, *others[1:])


def _multiply_and_add(traced: fx.GraphModule, norm: fx.Node, scale: Tensor, shift: Tensor) -> fx.Node:
    """The batch norm as a product and a sum, for inputs that come from no layer that could take it in."""
    inputs = norm.args[0]
    assert isinstance(inputs, fx.Node)
    dims = inputs.meta["val"].dim()
    shaped = {name: each.reshape(-1, *[1] * (dims - 2)) for name, each in (("scale", scale), ("shift", shift))}
    with traced.graph.inserting_before(norm):
        factor, summand = _constants(traced, norm.name, shaped, inputs.meta["val"].dtype)
        product = traced.graph.call_function(ATEN.mul.Tensor, (inputs, factor))
        return traced.graph.call_function(ATEN.add.Tensor, (product, summand))


def _constants(traced: fx.GraphModule, owner: str, values: dict[str, Tensor], dtype: torch.dtype) -> list[fx.Node]:
    """Nodes of new tensors, at the place where the graph is being changed."""
    nodes = []
    for name, value in values.items():
        traced.register_buffer(f"folded_{owner}_{name}", value.to(dtype))
        nodes.append(traced.graph.get_attr(f"folded_{owner}_{name}"))
    return nodes


def _value(traced: fx.GraphModule, node: Any) -> Tensor:
    """The tensor that a node of the graph stands for."""
    value: Any = traced
    for part in str(node.target).split("."):
        value = getattr(value, part)
    assert isinstance(value, Tensor)
    return value


def _without_unused(traced: fx.GraphModule) -> fx.GraphModule:
    """The same graph over the tensors that it uses: those of old batch norms and of parts of the method go."""
    used: Sequence[str] = [str(node.target) for node in traced.graph.nodes if node.op == "get_attr"]
    root = nn.Module()
    for number, name in enumerate(dict.fromkeys(used)):
        tensor = _value(traced, next(node for node in traced.graph.nodes if node.target == name))
        root.register_buffer(f"tensor_{number}", tensor.detach())
        for node in traced.graph.nodes:
            if node.op == "get_attr" and node.target == name:
                node.target = f"tensor_{number}"
    return fx.GraphModule(root, traced.graph)
