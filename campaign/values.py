"""Properties of measures, cuts, masks and packed files, for any values in any dtype and layout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import palmette as pm
from campaign.child import Refused, forked
from campaign.ledger import Case, Result, Row
from palmette.checkpoints.prune import prune_checkpoint
from palmette.errors import NothingToPrune, PalmetteError
from palmette.measures.rows import INTEGER
from palmette.pruning.methods import SCOPES, Scope

EXAMPLES = 100  # in a case
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    )
}


def bits(tensor: Tensor) -> Tensor:
    """Its bits, as integers."""
    return tensor.contiguous().view(INTEGER[tensor.element_size()])


def _drawn(draw: st.DrawFn, dtype: torch.dtype) -> Tensor:
    """Tensor of any values: every pattern of bits, ordinary numbers, or many that are equal; in any layout."""
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    size, width = math.prod(shape), dtype.itemsize
    if draw(st.booleans()):
        raw = draw(st.binary(min_size=size * width, max_size=size * width))
        whole = torch.frombuffer(bytearray(raw + bytes(width)), dtype=INTEGER[width])[:size].view(dtype)
    else:
        top, tiny = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
        few = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, top, -top, tiny, tiny / 4])
        numbers = few if draw(st.booleans()) else st.floats(-8, 8, width=32)
        found = draw(st.lists(numbers, min_size=size, max_size=size))
        whole = torch.tensor(found, dtype=torch.float64).to(dtype)
    return _laid_out(whole.reshape(shape), draw(st.sampled_from(["plain", "strided", "transposed", "shifted"])))


_TENSORS = st.composite(_drawn)


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values at other places in memory."""
    if layout == "plain" or not tensor.dim():
        return tensor
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    *outer, last = tensor.shape
    room = torch.zeros(*outer, 2 * last + 1, dtype=tensor.dtype)
    place = room[..., 1::2] if layout == "strided" else room[..., 1 : last + 1]
    place.copy_(tensor)
    return place


def same(a: float, b: float, tolerance: float = 1e-9) -> bool:
    """Whether two numbers agree, to a part of them or of one; undefined equals undefined."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


# Properties.


def the_index_is_the_formula(tensor: Tensor) -> None:
    """PQ Index against exact sums of a list, undefined for nothing, zeros, NaN and infinities."""
    values = [abs(v) for v in tensor.double().reshape(-1).tolist()]
    for p, q in ((0.5, 1.0), (1.0, 2.0), (0.3, 1.7)):
        found, d, top = float(pm.pq_index(tensor, p=p, q=q)), len(values), max(values, default=0.0)
        if not all(map(math.isfinite, values)) or not top:
            assert math.isnan(found), f"an index of {found} for {values}"
            continue
        # By the exponent: a quotient of denormals would lose digits.
        shift = -math.frexp(top)[1]
        c = [math.ldexp(math.ldexp(v, shift // 2), shift - shift // 2) for v in values]
        norms = [math.fsum(v**e for v in c) ** (1 / e) for e in (p, q)]
        wanted = 1 - d ** (1 / q - 1 / p) * norms[0] / norms[1]
        assert 0 <= found < 1
        assert same(found, wanted), f"p={p}, q={q}: {found} is not {wanted} for {values}"


def measures_see_values_only(tensor: Tensor) -> None:
    """Every measure of any dtype and layout against that of the same numbers in float64."""
    plain = tensor.double().contiguous()
    for name, measure in pm.MEASURES.items():
        found, wanted = float(measure(tensor)), float(measure(plain))
        assert same(found, wanted), f"{name}: {found} is not {wanted} for {plain.tolist()}"


def cuts_take_the_smallest(tensor: Tensor) -> None:
    """Masks against a sorted list; of equal magnitudes the first goes."""
    finite = bool(tensor.double().isfinite().all())
    for scope, ratio in itertools.product(SCOPES, (0.0, 0.3, 0.9)):
        try:
            kept = _cut(tensor, scope, ratio)
        except (PalmetteError, TypeError, ValueError) as error:
            if tensor.dim() and tensor.numel() and finite and not isinstance(error, NothingToPrune):
                raise AssertionError(f"a sound weight is refused: {error}") from error
            continue
        assert finite, "NaN or infinity is ranked"
        rows = tensor.shape[0] if scope == "neuron" else 1
        magnitudes = tensor.double().abs().reshape(rows, -1).tolist()
        for row, marks in zip(magnitudes, kept.reshape(rows, -1).tolist(), strict=True):
            count = math.floor(len(row) * ratio + 1e-9) if any(row) else 0  # zeros have no index, and are left
            gone = sorted(range(len(row)), key=lambda i: (row[i], i))[:count]
            assert [i for i, k in enumerate(marks) if not k] == sorted(gone), f"{scope} {ratio}: {row}"


def _cut(tensor: Tensor, scope: Scope, ratio: float) -> Tensor:
    """Mask of a cut; of float8, which is not trained, by way of a file."""
    if tensor.dtype.itemsize > 1:
        return pm.prune({"w": tensor}, scope=scope, budget=pm.FixedRatio(ratio))[0]["w"]
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / "w.safetensors", Path(folder) / "out.safetensors"
        save_file({"w": tensor.contiguous()}, source)
        cut = prune_checkpoint(source, out, scope=scope, budget=pm.FixedRatio(ratio), include=["w"], zeros="count")
        assert cut.masks is not None
        return pm.Masks.load(cut.masks)["w"]


def masks_set_zeros_and_nothing_else(tensor: Tensor) -> None:
    """Bits of a weight after a cut by a Pruner, and after `Masks.apply_`."""
    sound = tensor.dim() == 2 and tensor.numel() and bool(tensor.double().isfinite().all())
    if not sound or tensor.dtype.itemsize == 1:  # float8 is not trained
        return
    model = nn.Linear(tensor.shape[1], tensor.shape[0], bias=False)
    model.weight = nn.Parameter(tensor.clone())
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="layer", include=["weight"])
    pruner.step()
    copied = tensor.clone()
    pruner.masks.apply_({"weight": copied})
    kept = pruner.masks["weight"]
    for now in (model.weight.detach(), copied):
        assert not bool(bits(now)[~kept].any()), "a pruned weight is not +0"
        assert torch.equal(bits(now)[kept], bits(tensor)[kept]), "a kept weight has changed"


def packed_files_give_back_every_bit(tensor: Tensor) -> None:
    """`save` and `load`, NaN and -0 included."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "w.safetensors"
        pm.save(file, {"w": tensor})
        found = pm.load(file)["w"]
    assert found.dtype == tensor.dtype
    assert found.shape == tensor.shape
    assert torch.equal(bits(found), bits(tensor))


def mask_files_give_back_every_mask(tensor: Tensor) -> None:
    """`Masks.save` and `Masks.load` of any shape."""
    masks = pm.Masks({"w": tensor.double() > 0, "v": torch.ones(3, dtype=torch.bool)})
    with TemporaryDirectory() as folder:
        masks.save(Path(folder) / "m.safetensors")
        assert pm.Masks.load(Path(folder) / "m.safetensors") == masks


PROPERTIES: tuple[Callable[[Tensor], None], ...] = (
    the_index_is_the_formula,
    measures_see_values_only,
    cuts_take_the_smallest,
    masks_set_zeros_and_nothing_else,
    packed_files_give_back_every_bit,
    mask_files_give_back_every_mask,
)


def _tried(check: Callable[[Tensor], None], dtype: torch.dtype, seed: int) -> tuple[int, str]:
    """Number of examples, and the smallest that fails."""
    tried = 0

    def counted(tensor: Tensor) -> None:
        nonlocal tried
        tried += 1
        check(tensor)

    chosen = settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    try:
        hypothesis.seed(seed)(chosen(hypothesis.given(_TENSORS(dtype))(counted)))()
    except Exception as error:
        return tried, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return tried, ""


def _case(check: Callable[[Tensor], None], dtype: torch.dtype, seed: int, folder: Path) -> Result:
    ended = forked(partial(_tried, check, dtype, seed), seconds=300)
    if ended.how != "done":
        return Result(EXAMPLES, (str(ended),))
    tried, why = ended.value
    return Result(tried, (why,) if why else ())


# 10^9 entries, with answers known beforehand.


def _large(dtype: torch.dtype) -> None:
    """A billion entries: index, count and choice. One of ten is 1, the others are 1/2."""
    d, p, q = 10**9, 0.5, 1.0
    weight = torch.full((d,), 0.5, dtype=dtype)
    weight[::10] = 1.0
    ones, halves = d // 10, d - d // 10
    wanted = 1 - d ** (1 / q - 1 / p) * (ones + halves * 0.5**p) ** (1 / p) / (ones + halves * 0.5)
    if not same(found := float(pm.pq_index(weight, p=p, q=q)), wanted):
        raise Refused(f"index {found} instead of {wanted}")
    if dtype.itemsize == 1:
        return  # cut in files only, in parts
    masks, decision = pm.prune({"w": weight}, scope="global", budget=pm.FixedRatio(0.25))
    kept = masks["w"]
    if int(decision.groups[0].c) != d // 4 or int(kept.sum()) != d - d // 4:
        raise Refused(f"cut {int(decision.groups[0].c)}, {int(kept.sum())} are left, of {d}")
    last = int(torch.nonzero(~kept[-(d // 2) :]).numel())
    if not bool(kept[::10].all()) or last:
        raise Refused("of equal weights, it was not the first that were cut")


def _large_case(dtype: torch.dtype, folder: Path) -> Result:
    ended = forked(partial(_large, dtype), seconds=1800)
    return Result(1, () if ended.how == "done" else (str(ended),))


def _cases(seed: int) -> Iterator[Case]:
    for number in range(2):
        for check, (name, dtype) in itertools.product(PROPERTIES, DTYPES.items()):
            words = check.__name__.replace("_", " ")
            yield Case(f"{words}, {name}, {number}", partial(_case, check, dtype, 1000 * seed + number))


def _large_cases(seed: int) -> Iterator[Case]:
    for name in ("bfloat16", "float8_e4m3fn"):
        yield Case(f"10^9 entries, {name}", partial(_large_case, DTYPES[name]))


ROWS = (
    Row(
        "values",
        "measures, cuts, masks and packed files of random tensors, float64 to float8, with denormals, ±0, "
        "infinities and NaN, empty and strided: six properties hold",
        5000,
        _cases,
    ),
    Row("large", "index and cut of 10⁹ entries (long; 12 GB of memory)", 2, _large_cases),
)
