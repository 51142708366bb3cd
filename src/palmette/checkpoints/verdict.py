"""The figures of `how_compressible` in sentences: a verdict and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from palmette.pruning.choosing.coverage import NO_FLOATS, LeftOut
from palmette.pruning.methods import SCOPES, Scope

if TYPE_CHECKING:
    from palmette.checkpoints.compressibility import Compressibility, Measurement
    from palmette.checkpoints.headroom import Headroom
    from palmette.pruning.budgets import Sap
    from palmette.pruning.tolerance import Tolerance

NOT_A_LIMIT = (
    "This is the size of a first cut before retraining, not a limit. With a function that scores the model, "
    "how_compressible(model, evaluate=…) measures what can go without retraining."
)
# The numbers are those of docs/headroom.csv, scope global; a test compares them.
CALIBRATION = (
    "On 9 real networks, without retraining, such a cut in scope global stayed within the tolerance (0.01 of "
    "accuracy or correlation, 5% of perplexity) on 8, where 1.2 to 5.2 times as many weights could go; it was "
    "too much for MobileNetV2."
)
NOT_SAFE = (
    "At p=1, q=2 the cut is not safe without retraining: in scope global it was too much for 7 of 9 real "
    "networks; accuracies fell by up to 1.8 points, a perplexity rose from 27 to 111."
)
FEW_LEVELS = 256  # distinct magnitudes of 8 bits
_MANY = 4096  # non-zero entries, which have more than FEW_LEVELS magnitudes unless they are quantized
_SPARSE = 0.01
_OF_WEIGHTS = ("weight", "weight_packed")  # names of quantized weights; GPTQ's is qweight


def gaussian_index(p: float, q: float) -> float:
    r"""PQ Index of many Gaussian numbers, such as untrained weights.

    .. math:: 1 - \mathrm{E}[|x|^p]^{1/p} / \mathrm{E}[|x|^q]^{1/q}, \qquad
              \mathrm{E}[|x|^p] = 2^{p/2}\,\Gamma(\tfrac{p+1}{2}) / \sqrt\pi

    >>> round(gaussian_index(1, 2), 5), round(gaussian_index(0.5, 1), 4)
    (0.20212, 0.1528)
    """

    def mean(power: float) -> float:
        log_moment = power / 2 * math.log(2) + math.lgamma((power + 1) / 2) - math.log(math.pi) / 2
        return math.exp(log_moment / power)

    return 1 - mean(p) / mean(q)


def verdict(report: Compressibility) -> tuple[str, ...]:
    """Say how large a first cut SAP suggests, how the weights compare with untrained ones, and what was tested."""
    whole, budget, numbers = report.whole, report.budget, report.plain_numbers
    if whole.pq_index is None or whole.removable is None:
        return ("Zeros alone have no index, and SAP cuts none of them.",)
    shares: dict[str, float] = {scope: whole.share_cut(scope) for scope in SCOPES}
    if numbers:
        may_go = f"SAP would cut {shares['global']:.0%} of these {whole.d:,} numbers."
    else:
        scopes = ", ".join(f"{scope} {share:.1%}" for scope, share in shares.items())
        may_go = f"A first cut before retraining: {_range(shares)} of these {whole.d:,} weights ({scopes})."
    noise = gaussian_index(float(budget.p), float(budget.q))
    if whole.pq_index < 0.9 * noise:
        how = f"flatter than Gaussian noise ({noise:.3f}): few values are small"
    elif whole.pq_index < 1.1 * noise:
        how = f"about that of Gaussian noise ({noise:.3f}): small values do not stand out"
    else:
        how = f"more unequal than Gaussian noise ({noise:.3f}): small values stand out"
    tail = ""
    if whole.tail_mass is not None:
        tail = (
            f" The {whole.removable:.0%} that the bound removes have {whole.tail_mass:.1%} of the mass of the "
            f"rest, summed as |w|^{budget.p:g}."
        )
    index = f"PQ Index {whole.pq_index:.3f}, {how}.{tail}"
    if numbers:
        return may_go, index, "The bound sizes a cut; it is not a limit."
    if report.headroom:
        return may_go, index, _tested(report.headroom)
    return may_go, index, NOT_A_LIMIT, *([CALIBRATION] if is_calibrated(budget) else [])


def _tested(headroom: Sequence[Headroom]) -> str:
    """The scope that allows most, in a sentence."""
    found = max(headroom, key=lambda h: h.share)
    suggested = f"the index suggests {found.suggested.share:.0%}"
    if not found.suggested.allowed:
        suggested += f", which costs {found.loss(found.suggested):.3g}"
    can_go = f"{found.share:.0%} of the weights" if found.share >= 0.005 else "hardly any weight"
    return f"Without retraining, {can_go} can go {_cost(found.tolerance)} (scope {found.scope}); {suggested}."


def _cost(tolerance: Tolerance) -> str:
    if tolerance.kind == "not-worse":
        return f"with a score that is not worse at confidence {tolerance.by:g}"
    return f"at a cost of at most {tolerance}{' of the score' if tolerance.kind == 'relative' else ''}"


def scope_of_numbers(m: Measurement) -> Scope:
    """Scope in which plain numbers are cut: each vector by itself, and the whole as one vector."""
    return "layer" if m.shape else "global"


def _range(shares: Mapping[str, float]) -> str:
    low, high = (f"{share:.0%}" for share in (min(shares.values()), max(shares.values())))
    return low if low == high else f"{low.removesuffix('%')} to {high}"


def warnings(report: Compressibility) -> tuple[str, ...]:
    """Reasons to be careful with these figures."""
    layers, whole, budget, headroom = report.layers, report.whole, report.budget, report.headroom
    said, numbers = list[str](), report.plain_numbers  # no signal has to pass through numbers without neurons
    for scope in () if numbers else SCOPES:
        if lost := [layer.name for layer in layers if 0 < layer.d <= layer.sap_cut[scope]]:
            said.append(
                f"{_names(lost)} would lose everything in scope {scope}: nothing would pass; exclude it, or "
                "change the scope."
            )
        if nearly := [layer.name for layer in layers if 0.99 * layer.d <= layer.sap_cut[scope] < layer.d]:
            said.append(f"{_names(nearly)} would keep less than 1% in scope {scope}.")
    if empty := [layer.name for layer in layers if layer.pq_index is None]:
        said.append(f"{_names(empty)}: all zeros.")
    if whole.zeros > _SPARSE * whole.d:
        what = "numbers" if numbers else "weights"
        said.append(
            f"{whole.zeros:,} of {whole.d:,} {what} are zero already. They count as {what} here and go "
            "first, so that a cut takes less than it says."
        )
    if whole.d < whole.entries:
        gone = f"{whole.entries - whole.d:,} of {whole.entries:,} weights"
        said.append(f"{gone} were pruned before, according to a mask or their zeros, and do not count.")
    if whole.dead_neurons and whole.zeros < whole.d and not numbers:
        said.append(f"{whole.dead_neurons:,} of {whole.neurons:,} neurons have only zero weights.")
    if not (numbers or headroom or whole.pq_index is None or is_calibrated(budget)):
        said.append(NOT_SAFE if _known_to_be_large(budget) else f"{_not_tested(budget)} {NOT_SAFE}")
    if unlimited := [found.scope for found in headroom if all(cut.allowed for cut in found.curve)]:
        said.append(
            f"Even {min(found.share for found in headroom if found.scope in unlimited):.0%} cut in scope "
            f"{_names(unlimited)} stayed within the tolerance. Does evaluate run the model that it is given, and "
            "are larger scores better? If not, set maximize=False."
        )
    return (*said, *_quantized(layers, report.left_out))


def _known_to_be_large(budget: Sap) -> bool:
    return (budget.p, budget.q) == (1, 2) and budget.gamma >= 1


def _not_tested(budget: Sap) -> str:
    settings = ", ".join(f"{name}={getattr(budget, name):g}" for name in ("p", "q", "eta", "gamma"))
    return f"Cuts at {settings} were not tested without retraining."


def is_calibrated(budget: Sap) -> bool:
    """Whether cuts of the budget were tested without retraining: the default norms, and no larger cut."""
    return (budget.p, budget.q, budget.eta) == (0.5, 1.0, 0.0) and budget.gamma <= 1


def _quantized(layers: Sequence[Measurement], left_out: Sequence[LeftOut]) -> Iterator[str]:
    matrices = [t.name for t in left_out if t.why == NO_FLOATS and len(t.shape) > 1]
    integers = [name for name in matrices if name.endswith(_OF_WEIGHTS)]
    if integers:
        yield (
            f"{_names(integers)}: quantized, and left out, so that this is about the rest. Measure, and prune, "
            "before quantizing."
        )
    coded = [layer for layer in layers if layer.coding]
    if coded:
        many = f"All {len(layers)}" if len(coded) == len(layers) else f"{len(coded)} of {len(layers)}"
        kinds = ", ".join(sorted({layer.coding for layer in coded}))
        yield (
            f"{many} layers were unpacked from {kinds}: magnitudes of so few levels say little about which weight "
            "matters. Measure and prune before quantizing."
        )
    few = [m.name for m in layers if not m.coding and m.d - m.zeros >= _MANY and m.levels <= FEW_LEVELS]
    if few:
        yield (
            f"{_names(few)}: no more than {FEW_LEVELS} different magnitudes. Quantized weights say little "
            "about which of them matters."
        )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
