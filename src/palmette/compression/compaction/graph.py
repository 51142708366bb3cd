"""Which channels of a network can go: followed through its graph, from what makes them to all that read them.

Every index along a channel axis, of a weight or of an activation, is an *atom*; atoms that can only go together
(a sum's, a batch norm's and its input's) are joined. An activation's channel may be *known*: the same number at
every place and for every input, as after a row of zeros. An atom can go when each layer that reads it has either a
column of zeros there, or knows the number and can take it into its bias.
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
    """The channels of an activation: their axis, an atom for each, and the numbers that are known."""

    axis: int
    atoms: Tensor
    known: Tensor
    value: Tensor

    def at(self, axis: int, positions: Tensor) -> Channels:
        """The same channels elsewhere, each as often as `positions` has it."""
        return Channels(axis, self.atoms[positions], self.known[positions], self.value[positions])

    def only(self, still: Tensor) -> Channels:
        """The same channels, of which only those in `still` are known."""
        return Channels(self.axis, self.atoms, self.known & still, self.value)


@dataclass
class Stored:
    """A parameter or buffer: its names, how many nodes use it, and the atoms of the axes that have some."""

    names: list[str]
    tensor: Tensor
    uses: int = 0
    pinned: str = ""
    axes: dict[int, Tensor] = field(default_factory=dict)

    def owner(self, model: nn.Module) -> Any:
        """The module that has it."""
        return model.get_submodule(self.names[0].rpartition(".")[0])


@dataclass(frozen=True)
class Read:
    """A layer that mixes channels: which of its inputs each output has weights for, and if its bias takes more."""

    inputs: Channels
    weight: Stored
    in_axis: int
    out_axis: int
    bias: Stored | None
    linked: Tensor  # outputs × inputs: some weight is not zero
    folds: bool


Value: TypeAlias = Any  # Channels | Stored | None (nothing is followed) | a number or list of the graph | a tuple


class Walk:
    """One pass over the graph of `program`, a trace of `model`, in the order of execution."""

    def __init__(self, program: ExportedProgram, model: nn.Module) -> None:
        from palmette.compression.compaction.operations import HANDLERS

        self.model = model
        self.reads: list[Read] = []
        # The weight of each convolution in groups, and the first atom of each of these.
        self.groups: list[tuple[Stored, Tensor]] = []
        self.equal: list[tuple[list[Tensor], str]] = []  # atoms of parts that lose as many each, and of which node
        self.pins: dict[int, str] = {}  # atom -> the node that keeps it
        self.alive: set[int] = set()  # atoms that are kept and carry something
        self._parents: list[int] = []
        self._env: dict[Node, Value] = {}
        self.stored = self._stored(program)
        for node in program.graph.nodes:
            if node.op == "call_function":
                name = "getitem" if node.target is operator.getitem else _op(node)
                self._env[node] = HANDLERS[name](self, node) if name in HANDLERS else self.stop(node)
            elif node.op == "output":
                for leaf in node.all_input_nodes:
                    self.pin(self._env[leaf], "the output")
            elif node not in self._env:
                self._env[node] = None

    def _stored(self, program: ExportedProgram) -> list[Stored]:
        placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        places: dict[tuple[object, ...], Stored] = {}
        for spec in program.graph_signature.input_specs:
            if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER) or spec.target is None:
                continue
            tensor = self._tensor(spec.target)
            if tensor is None:
                continue
            place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (spec.target,)
            stored = places.setdefault(place, Stored([], tensor))
            node = placeholders[spec.arg.name]
            stored.names.append(spec.target)
            stored.uses += len(node.users)
            self._env[node] = stored
        return list(places.values())

    def _tensor(self, name: str) -> Tensor | None:
        owner, _, attribute = name.rpartition(".")
        try:
            found = getattr(self.model.get_submodule(owner), attribute)
        except AttributeError:
            return None
        return found.detach() if isinstance(found, Tensor) else None

    def value(self, argument: Any) -> Value:
        """What is known of an argument of a node: of another node, or the number itself."""
        return self._env[argument] if isinstance(argument, Node) else argument

    def fresh(self, count: int) -> Tensor:
        """So many new atoms."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return torch.arange(first, first + count)

    def unknown(self, axis: int, size: int) -> Channels:
        """New channels of which no number is known."""
        return Channels(axis, self.fresh(size), torch.zeros(size, dtype=torch.bool), torch.zeros(size).double())

    def axis(self, stored: Stored, axis: int) -> Tensor:
        """The atoms along an axis of a parameter."""
        if axis not in stored.axes:
            stored.axes[axis] = self.fresh(stored.tensor.shape[axis])
            if stored.pinned:
                self.keep(stored.axes[axis], stored.pinned)
        return stored.axes[axis]

    def join(self, one: Tensor, other: Tensor) -> None:
        """From now on each atom of `one` goes with the atom of `other` beside it, or not at all."""
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            a, b = self._root(a), self._root(b)
            self._parents[max(a, b)] = min(a, b)

    def _root(self, atom: int) -> int:
        while self._parents[atom] != atom:
            self._parents[atom] = self._parents[self._parents[atom]]
            atom = self._parents[atom]
        return atom

    def pin(self, value: Value, why: str) -> None:
        """What `value` has stays."""
        if isinstance(value, Channels):
            self.keep(value.atoms, why)
            self.alive.update(value.atoms[~value.known].tolist())
        elif isinstance(value, Stored):
            value.pinned = value.pinned or why
            for atoms in value.axes.values():
                self.keep(atoms, why)
        elif isinstance(value, list | tuple):
            for part in value:
                self.pin(self.value(part), why)

    def keep(self, atoms: Tensor, why: str) -> None:
        """These atoms stay, whether they carry something or not."""
        for atom in atoms.tolist():
            self.pins.setdefault(atom, why)

    def stop(self, node: Node) -> Value:
        """A node that is not followed: what comes into it stays."""
        for source in node.all_input_nodes:
            self.pin(self._env[source], told(node))
        return None

    def roots(self) -> Tensor:
        """The representative of each atom."""
        return torch.tensor([self._root(a) for a in range(len(self._parents))], dtype=torch.long)


@dataclass(frozen=True)
class Plan:
    """What a walk found: which atoms can go, and which could but for a node that keeps them."""

    walk: Walk
    gone: Tensor  # per atom
    kept: Mapping[str, int]  # reason -> how many

    def parts(self) -> list[Tensor]:
        """The atoms that go, in parts that share no axis of any parameter."""
        parts = self.walk.roots().clone()
        for stored in self.walk.stored:
            for atoms in stored.axes.values():
                together = parts[atoms[self.gone[atoms]]].unique()
                parts[torch.isin(parts, together)] = together.min() if len(together) else 0
        return [(parts == first) & self.gone for first in parts[self.gone].unique()]


def planned(walk: Walk) -> Plan:
    """Decide which atoms go."""
    roots = walk.roots()
    gone, pinned = _going(walk, roots)
    while surplus := _surplus(walk, gone):
        for atoms, why in surplus:
            walk.keep(atoms, why)
        gone, pinned = _going(walk, roots)
    dead = _removable(walk, roots, pinned=_marked(roots, walk.alive)) & pinned[roots]
    reasons = {int(roots[atom]): why for atom, why in reversed(walk.pins.items())}
    kept = Counter(reasons[root] for root in roots[dead].unique().tolist())
    for stored in walk.stored:
        if stored.pinned and not stored.axes:
            kept += Counter({stored.pinned: _unseen_rows(walk, stored)})
    return Plan(walk, gone, kept)


def _going(walk: Walk, roots: Tensor) -> tuple[Tensor, Tensor]:
    """Per atom whether it goes, and per root whether it is pinned."""
    pinned = _marked(roots, walk.pins)
    return _leave_one(walk, roots, _removable(walk, roots, pinned=pinned)), pinned


def _marked(roots: Tensor, atoms: Iterable[int]) -> Tensor:
    """Which roots are those of `atoms`."""
    marked = torch.zeros(len(roots), dtype=torch.bool)
    marked[roots[list(atoms)]] = True
    return marked


def _surplus(walk: Walk, gone: Tensor) -> list[tuple[Tensor, str]]:
    """What parts that should lose as many each lose more than the one that loses the fewest."""
    found = []
    for parts, why in walk.equal:
        going = [atoms[gone[atoms]] for atoms in parts]
        least = min(map(len, going))
        found += [(atoms[least:], why) for atoms in going if len(atoms) > least]
    return found


def _unseen_rows(walk: Walk, stored: Stored) -> int:
    """Rows of zeros of a layer that has no atoms, as in a block in mixed precision or under weight norm."""
    path, _, made_of = f".{stored.names[0]}".partition(".parametrizations.")
    layer: Any = walk.model.get_submodule(path[1:]) if made_of else stored.owner(walk.model)
    if not isinstance(layer, LAYERS) or made_of not in ("", "weight.original", "weight.original0"):
        return 0
    weight = layer.weight if made_of else stored.tensor
    return int((~weight.flatten(1).ne(0).any(1)).sum()) if weight.dim() > 1 else 0


def _removable(walk: Walk, roots: Tensor, pinned: Tensor) -> Tensor:
    """Per atom whether it can go. What goes is read by nobody, which may let others go: until nothing changes."""
    gone = torch.zeros(len(roots), dtype=torch.bool)
    while True:
        stays = pinned.clone()
        for read in walk.reads:
            taken = read.inputs.known & (read.folds | (read.inputs.value == 0))
            asked = read.linked[~gone[walk.axis(read.weight, read.out_axis)]].any(0)
            stays[roots[read.inputs.atoms[asked & ~taken]]] = True
        now = ~stays[roots]
        if bool((now == gone).all()):
            return gone
        gone = now


def _leave_one(walk: Walk, roots: Tensor, gone: Tensor) -> Tensor:
    """No axis goes whole: layers without channels are more than most code expects."""
    gone = gone.clone()
    axes = [atoms for stored in walk.stored for atoms in stored.axes.values() if len(atoms)]
    while whole := [atoms for atoms in axes if bool(gone[atoms].all())]:
        gone[roots == roots[whole[0][0]]] = False
    return gone


def told(node: Node) -> str:
    """A node, as people find it: its operation and the module it is in."""
    stack: Iterable[tuple[str, Any]] = (node.meta.get("nn_module_stack") or {}).values()
    inside = [path for path, _ in stack if path]
    return f"{node.name} ({_op(node)}{' in ' + inside[-1] if inside else ''})"


def _op(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name.removeprefix("aten::") if schema is not None else str(node.target)
