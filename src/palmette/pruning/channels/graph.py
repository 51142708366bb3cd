"""Find the channels of a network that can be removed, by following them through its graph.

Every index along a channel axis, of a weight or of an activation, is an *atom*. Atoms that can only be removed
together (those of a sum, or of a batch norm and its input) are joined. A channel of an activation may be *known*:
the same number at every position and for every input, as after a row of zeros. An atom can be removed when each
layer that reads it has a column of zeros there, or knows the number and can add it to its bias.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from palmette.pruning.weights import LAYERS


@dataclass(frozen=True)
class Channels:
    """Channels of an activation: their axis, an atom for each, and the known numbers."""

    axis: int
    atoms: Tensor
    known: Tensor
    value: Tensor

    def at(self, axis: int, positions: Tensor) -> Channels:
        """Channels selected by `positions`, which may repeat, along another axis."""
        return Channels(axis, self.atoms[positions], self.known[positions], self.value[positions])

    def only(self, still: Tensor) -> Channels:
        """The same channels, known only where `still` is True."""
        return Channels(self.axis, self.atoms, self.known & still, self.value)


@dataclass
class ModelTensor:
    """A parameter or buffer: its names, the number of nodes that use it, and the atoms of its channel axes."""

    names: list[str]
    tensor: Tensor
    uses: int = 0
    pinned: str = ""
    axes: dict[int, Tensor] = field(default_factory=dict)

    def owner(self, model: nn.Module) -> Any:
        """The module that it is an attribute of."""
        return model.get_submodule(self.names[0].rpartition(".")[0])


@dataclass(frozen=True)
class MixingLayer:
    """A layer whose outputs depend on many input channels."""

    inputs: Channels
    weight: ModelTensor
    in_axis: int
    outputs: Tensor  # their atoms
    bias: ModelTensor | None
    linked: Tensor  # outputs × inputs: whether any weight is not zero
    folds: bool  # whether constants of its inputs can be added to its bias


Value: TypeAlias = Any  # Channels | ModelTensor | None (not followed) | number or list of the graph | tuple


class Walk:
    """One pass over the graph of `program`, a trace of `model`, in the order of execution."""

    def __init__(self, program: ExportedProgram, model: nn.Module) -> None:
        from palmette.pruning.channels.operations import HANDLERS

        self.model = model
        self.mixing: list[MixingLayer] = []
        # The weight of each grouped convolution, and the first atom of each group.
        self.groups: list[tuple[ModelTensor, Tensor]] = []
        # Atoms of each of the chunks that must lose equally many, and their node.
        self.equal: list[tuple[list[Tensor], str]] = []
        self.pins: dict[int, str] = {}  # atom -> what keeps it
        self.alive: set[int] = set()  # atoms that are kept and not constant
        self._parents: list[int] = []
        self._env: dict[Node, Value] = {}
        self.tensors = self._model_tensors(program)
        for node in program.graph.nodes:
            if node.op == "call_function":
                name = "getitem" if node.target is operator.getitem else _op(node)
                self._env[node] = HANDLERS[name](self, node) if name in HANDLERS else self.stop(node)
            elif node.op == "output":
                for leaf in node.all_input_nodes:
                    self.pin(self._env[leaf], "the output")
            elif node not in self._env:
                self._env[node] = None

    def _model_tensors(self, program: ExportedProgram) -> list[ModelTensor]:
        placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        own: dict[str | None, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        own |= dict(self.model.named_buffers(remove_duplicate=False))
        places: dict[tuple[object, ...], ModelTensor] = {}
        for spec in program.graph_signature.input_specs:
            if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER) or spec.target not in own:
                continue
            tensor = own[spec.target].detach()
            place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (spec.target,)
            stored = places.setdefault(place, ModelTensor([], tensor))
            node = placeholders[spec.arg.name]
            stored.names.append(spec.target)
            stored.uses += len(node.users)
            self._env[node] = stored
        return list(places.values())

    def value(self, argument: Any) -> Value:
        """Value of an argument of a node: that of another node, or the number itself."""
        return self._env[argument] if isinstance(argument, Node) else argument

    def fresh(self, count: int) -> Tensor:
        """New atoms."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def unknown(self, axis: int, size: int) -> Channels:
        """New channels, none of them known."""
        return Channels(axis, self.fresh(size), torch.zeros(size, dtype=torch.bool), torch.zeros(size).double())

    def axis(self, stored: ModelTensor, axis: int) -> Tensor:
        """The atoms along an axis of a parameter."""
        if axis not in stored.axes:
            stored.axes[axis] = self.fresh(stored.tensor.shape[axis])
            if stored.pinned:
                self.keep(stored.axes[axis], stored.pinned)
        return stored.axes[axis]

    def join(self, one: Tensor, other: Tensor) -> None:
        """Remove each atom of `one` only together with the atom at the same position of `other`."""
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            a, b = self._root(a), self._root(b)
            self._parents[max(a, b)] = min(a, b)

    def _root(self, atom: int) -> int:
        while self._parents[atom] != atom:
            self._parents[atom] = self._parents[self._parents[atom]]
            atom = self._parents[atom]
        return atom

    def pin(self, value: Value, why: str) -> None:
        """Keep all atoms of `value`."""
        if isinstance(value, Channels):
            self.keep(value.atoms, why)
            self.alive.update(value.atoms[~value.known].tolist())
        elif isinstance(value, ModelTensor):
            value.pinned = value.pinned or why
            for atoms in value.axes.values():
                self.keep(atoms, why)
        elif isinstance(value, list | tuple):
            for part in value:
                self.pin(self.value(part), why)

    def keep(self, atoms: Tensor, why: str) -> None:
        """Keep these atoms, constant or not."""
        for atom in atoms.tolist():
            self.pins.setdefault(atom, why)

    def stop(self, node: Node) -> Value:
        """Keep all inputs of a node that is not followed."""
        for source in node.all_input_nodes:
            self.pin(self._env[source], label_of(node))
        return None

    def roots(self) -> Tensor:
        """The representative of each atom."""
        return torch.tensor([self._root(a) for a in range(len(self._parents))], dtype=torch.long)


@dataclass(frozen=True)
class Removal:
    """Atoms to remove, and dead ones that a node keeps."""

    walk: Walk
    gone: Tensor  # per atom
    kept: Mapping[str, int]  # reason -> number of dead channels

    def parts(self) -> list[Tensor]:
        """Atoms to remove, split into parts that share no axis of any parameter."""
        parts = self.walk.roots().clone()
        for stored in self.walk.tensors:
            for atoms in stored.axes.values():
                together = parts[atoms[self.gone[atoms]]].unique()
                parts[torch.isin(parts, together)] = together.min() if len(together) else 0
        return [(parts == first) & self.gone for first in parts[self.gone].unique()]


def plan_removal(walk: Walk) -> Removal:
    """Decide which atoms to remove."""
    roots = walk.roots()
    while True:
        pinned = _marked(roots, walk.pins)
        gone = _leave_one(walk, roots, _removable(walk, roots, pinned=pinned))
        surplus = _surplus(walk, gone)
        if not surplus:
            break
        for atoms, why in surplus:
            walk.keep(atoms, why)
    dead = _removable(walk, roots, pinned=_marked(roots, walk.alive)) & pinned[roots]
    reasons = {int(roots[atom]): why for atom, why in reversed(walk.pins.items())}
    kept = Counter(reasons[root] for root in roots[dead].unique().tolist())
    for stored in walk.tensors:
        if stored.pinned and not stored.axes:
            kept += Counter({stored.pinned: _unseen_rows(walk, stored)})
    return Removal(walk, gone, kept)


def _marked(roots: Tensor, atoms: Iterable[int]) -> Tensor:
    """Mark the roots of `atoms`."""
    marked = torch.zeros(len(roots), dtype=torch.bool)
    marked[roots[list(atoms)]] = True
    return marked


def _surplus(walk: Walk, gone: Tensor) -> list[tuple[Tensor, str]]:
    """Atoms that chunks of equal size would lose beyond the chunk that loses the fewest."""
    found = []
    for parts, why in walk.equal:
        going = [atoms[gone[atoms]] for atoms in parts]
        least = min(map(len, going))
        found += [(atoms[least:], why) for atoms in going if len(atoms) > least]
    return found


def _unseen_rows(walk: Walk, stored: ModelTensor) -> int:
    """Number of zero rows of a layer without atoms, as in a block under autocast or weight norm."""
    path, _, made_of = f".{stored.names[0]}".partition(".parametrizations.")
    layer: Any = walk.model.get_submodule(path[1:]) if made_of else stored.owner(walk.model)
    if not isinstance(layer, LAYERS) or made_of not in ("", "weight.original", "weight.original0"):
        return 0
    weight = layer.weight if made_of else stored.tensor
    return int((~weight.flatten(1).ne(0).any(1)).sum()) if weight.dim() > 1 else 0


def _removable(walk: Walk, roots: Tensor, pinned: Tensor) -> Tensor:
    """Whether each atom can be removed; repeated until stable, since a removed layer reads nothing any more."""
    gone = torch.zeros(len(roots), dtype=torch.bool)
    while True:
        stays = pinned.clone()
        for layer in walk.mixing:
            folded = layer.inputs.known & (layer.folds | (layer.inputs.value == 0))
            needed = layer.linked[~gone[layer.outputs]].any(0)
            stays[roots[layer.inputs.atoms[needed & ~folded]]] = True
        now = ~stays[roots]
        if bool((now == gone).all()):
            return gone
        gone = now


def _leave_one(walk: Walk, roots: Tensor, gone: Tensor) -> Tensor:
    """Keep one channel of each axis: most code cannot handle layers without channels."""
    gone = gone.clone()
    axes = [atoms for stored in walk.tensors for atoms in stored.axes.values() if len(atoms)]
    while whole := [atoms for atoms in axes if bool(gone[atoms].all())]:
        gone[roots == roots[whole[0][0]]] = False
    return gone


def label_of(node: Node) -> str:
    """Name of a node for people: its operation and the module it is in."""
    stack: Iterable[tuple[str, Any]] = (node.meta.get("nn_module_stack") or {}).values()
    inside = [path for path, _ in stack if path]
    return f"{node.name} ({_op(node)}{' in ' + inside[-1] if inside else ''})"


def _op(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.removeprefix("aten::") if schema is not None else str(node.target)
