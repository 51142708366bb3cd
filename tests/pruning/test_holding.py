from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from campaign.optimizers import OPTIMIZERS, matrices
from torch import nn, optim

import palmette as pm
from palmette.errors import NotHeld, ParameterGone
from palmette.pruning.weights import parameters_by_name

X, Y = torch.linspace(-1, 1, 60).reshape(10, 6).sin(), torch.arange(10) % 3


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def halved(model, **options):
    return pm.Pruner(model, **{"budget": pm.FixedRatio(0.5), "scope": "layer"} | options)


def train(model, pruner, *optimizers, steps=1, loss=nn.functional.cross_entropy):
    """Train, and look at the pruned weights after every step."""
    x = X.to(next(model.parameters()))
    for _ in range(steps):
        for optimizer in optimizers:

            def closure():
                model.zero_grad()
                value = loss(model(x), Y.to(x.device))
                value.backward()
                return value

            if isinstance(optimizer, optim.LBFGS):
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            assert_pruned_are_zero(pruner)


def assert_pruned_are_zero(pruner):
    parameters = parameters_by_name(pruner.model)
    for name, kept in pruner.masks.items():
        values = parameters[name].detach()
        assert bool(values.isfinite().all())
        assert not bool(values[~kept.to(values.device)].any()), f"{name} has pruned weights that are not zero"


def weights_of(model):
    return [p.detach().clone() for p in model.parameters() if p.dim() > 1]


# Inductor's own imports warn.
INDUCTOR = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_the_table_has_every_optimizer_of_torch():
    named = {name.split()[0] for name in OPTIMIZERS} | {"SparseAdam", "Optimizer"}
    assert {name for name in vars(optim) if isinstance(getattr(optim, name), type)} <= named


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pruned_weights_are_zero_after_every_step_of_every_optimizer(optimizer):
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS[optimizer](model)
    pruner.hold(optimizer)
    for round in range(3):
        before = weights_of(model)
        train(model, pruner, optimizer, steps=3 + round)
        for old, new in zip(before, weights_of(model), strict=True):
            assert not torch.equal(old, new), "kept weights do not move"
        assert [int(m.sum()) for m in pruner.masks.values()] == [48 >> round, 24 >> round]
        pruner.step()
        assert_pruned_are_zero(pruner)
        for parameter in matrices(model):
            assert not bool(parameter.grad[parameter == 0].any())


@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
def test_masks_hold_in_every_scope(scope):
    model = network()
    pruner, optimizer = halved(model, scope=scope), OPTIMIZERS["SGD momentum decay"](model)
    pruner.hold(optimizer)
    for _ in range(3):
        train(model, pruner, optimizer, steps=2)
        pruner.step()
    train(model, pruner, optimizer, steps=2)


def test_convolutions_transposed_ones_and_attention_are_held():
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 4, 3)
            self.up = nn.ConvTranspose1d(4, 4, 3, groups=2)
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            x = self.up(self.conv(x[:, None]))
            x, _ = self.attention(x, x, x)
            return self.head(x.mean(1))

    model = Net()
    pruner, optimizer = halved(model, scope="neuron"), OPTIMIZERS["AdamW"](model)
    assert len(pruner.masks) == 5
    pruner.hold(optimizer)
    for _ in range(2):
        pruner.step()
        train(model, pruner, optimizer, steps=3)


def test_sparse_gradients_of_an_embedding_are_let_through():
    torch.manual_seed(0)
    embedding = nn.Embedding(5, 4, sparse=True)
    pruner = halved(embedding, include=["weight"])
    optimizer = optim.SparseAdam(embedding.parameters())
    pruner.hold(optimizer)
    pruner.step()
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.tensor([0, 2, 2])).square().sum().backward()
        optimizer.step()
        assert_pruned_are_zero(pruner)


# Gradients.


def gradients_of_kept(model, pruner):
    """The gradients that a network without hooks has, at the kept places."""
    twin = network()
    twin.load_state_dict(model.state_dict())
    nn.functional.cross_entropy(twin(X), Y).backward()
    return [p.grad * pruner.masks[name] if name in pruner.masks else p.grad for name, p in twin.named_parameters()]


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_does_not_count_pruned_gradients(foreach):
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["SGD"](model)
    pruner.hold(optimizer)
    pruner.step()
    kept = gradients_of_kept(model, pruner)
    nn.functional.cross_entropy(model(X), Y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3, foreach=foreach)
    assert norm == torch.nn.utils.get_total_norm(kept)
    for parameter, wanted in zip(model.parameters(), kept, strict=True):
        torch.testing.assert_close(parameter.grad, wanted * (1e-3 / (norm + 1e-6)))


def test_accumulated_gradients_are_those_of_kept_weights():
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["Adam"](model)
    pruner.hold(optimizer)
    pruner.step()
    kept = gradients_of_kept(model, pruner)
    for part in range(5):
        rows = slice(2 * part, 2 * part + 2)
        (nn.functional.cross_entropy(model(X[rows]), Y[rows]) / 5).backward()
    for parameter, wanted in zip(model.parameters(), kept, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)
    optimizer.step()
    assert_pruned_are_zero(pruner)


def test_existing_gradients_lose_their_pruned_entries():
    model = network()
    pruner = halved(model)
    nn.functional.cross_entropy(model(X), Y).backward()
    pruner.step()
    assert all(not bool(model.get_parameter(name).grad[~kept].any()) for name, kept in pruner.masks.items())


@pytest.mark.parametrize("name", ["SGD momentum decay", "Adam amsgrad", "Adadelta", "Muon", "RMSprop"])
def test_optimizer_state_of_pruned_weights_is_zeroed(name):
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS[name](model)
    pruner.hold(optimizer)
    train(model, pruner, optimizer, steps=2)
    pruner.step()
    looked_at = 0
    for weight, kept in pruner.masks.items():
        parameter = model.get_parameter(weight)
        for value in optimizer.state[parameter].values():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                looked_at += 1
                assert not bool(value[~kept].any())
                assert bool(value[kept].any())
    assert looked_at >= 2


@pytest.mark.parametrize("name", ["LBFGS", "LBFGS strong Wolfe"])
def test_pruned_weights_stay_zero_while_lbfgs_searches(name):
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS[name](model)
    pruner.hold(optimizer)
    train(model, pruner, optimizer, steps=2)
    pruner.step()
    model.register_forward_pre_hook(lambda *_: assert_pruned_are_zero(pruner))
    train(model, pruner, optimizer, steps=2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_at_pruned_places_become_zero(bad):
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["SGD"](model)
    pruner.hold(optimizer)
    pruner.step()
    with torch.no_grad():
        model[0].weight[~pruner.masks["0.weight"]] = bad
    optimizer.step()
    assert_pruned_are_zero(pruner)


# Precision.


@pytest.mark.parametrize("name", ["SGD momentum decay", "AdamW", "Adam fused"])
def test_masks_hold_under_autocast(name):
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS[name](model)
    pruner.hold(optimizer)
    for _ in range(2):
        pruner.step()
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(X), Y)
            loss.backward()
            optimizer.step()
            assert_pruned_are_zero(pruner)


def test_a_gradient_that_overflows_at_a_pruned_place_does_not_stop_the_scaler():
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["SGD momentum decay"](model)
    pruner.hold(optimizer)
    with torch.no_grad():
        model[0].weight[:, 0] *= 1e-3  # the smallest: the first input is not used any more
    pruner.step()
    assert not bool(pruner.masks["0.weight"][:, 0].any())
    x = X.clone()
    x[:, 0] = 1e38
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        before = weights_of(model)
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), Y)).backward()
        scaler.unscale_(optimizer)
        assert bool(nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite())
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 65536
        assert all(not torch.equal(old, new) for old, new in zip(before, weights_of(model), strict=True))
        assert_pruned_are_zero(pruner)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("renewed", [False, True], ids=["same optimizer", "new optimizer"])
def test_masks_hold_when_the_model_changes_its_dtype(dtype, renewed):
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["SGD"](model)
    pruner.hold(optimizer)
    train(model, pruner, optimizer, steps=2)
    pruner.step()
    model.to(dtype)
    if renewed:
        optimizer = OPTIMIZERS["Adam"](model)
        pruner.hold(optimizer)
    train(model, pruner, optimizer, steps=2)
    pruner.step()
    train(model, pruner, optimizer, steps=2)
    assert pruner.density == 0.25
    assert all(not bool(p.grad[p == 0].any()) for p in matrices(model))


# Whoever comes and goes.


def test_a_replaced_optimizer_is_held_like_the_first():
    model = network()
    pruner = halved(model)
    for name in ("SGD momentum decay", "AdamW", "LBFGS", "Adafactor"):
        optimizer = OPTIMIZERS[name](model)
        pruner.hold(optimizer)
        train(model, pruner, optimizer, steps=2)
        pruner.step()
        train(model, pruner, optimizer, steps=2)


def test_two_optimizers_may_share_a_model():
    model = network()
    pruner = halved(model)
    first, second = optim.SGD(model[0].parameters(), lr=0.1), optim.AdamW(model[2].parameters(), lr=0.1)
    pruner.hold(first)
    pruner.hold(second)
    train(model, pruner, first, second, steps=2)
    pruner.step()
    train(model, pruner, first, second, steps=3)


def test_weights_that_join_an_optimizer_later_are_held():
    model = network()
    pruner, optimizer = halved(model), optim.SGD(model[0].parameters(), lr=0.1)
    pruner.hold(optimizer)
    pruner.step()
    optimizer.add_param_group({"params": list(model[2].parameters())})
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.warns(UserWarning, match=r"12 pruned weights \(2.weight\) are no longer zero"):
        train(model, pruner, optimizer)


def test_weights_stay_held_when_the_optimizer_switches_to_copies():
    class Copies(optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for parameter, precise in zip(model.parameters(), self.param_groups[0]["params"], strict=True):
                parameter.data.copy_(precise)

    model = network()
    pruner, optimizer = halved(model), Copies(model.parameters(), lr=0.1)
    pruner.hold(optimizer)
    optimizer.param_groups[0]["params"] = [p.detach().double().requires_grad_() for p in model.parameters()]
    pruner.step()
    optimizer.step()
    assert_pruned_are_zero(pruner)


def test_a_step_leaves_the_weights_of_another_optimizer_unchanged():
    model = nn.ModuleDict({"maker": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "critic": nn.Linear(4, 1)})
    makes, judges = (torch.optim.Adam(model[name].parameters(), weight_decay=0.1) for name in ("maker", "critic"))
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5))
    pruner.hold(makes)
    pruner.hold(judges)
    pruner.step()
    for _ in range(2):
        made = model["maker"](torch.randn(3, 4))
        model["critic"](made.detach()).sum().backward()
        judges.step()
        model["critic"](made).sum().backward()
        makes.step()
        assert_pruned_are_zero(pruner)


def test_an_optimizer_that_accelerate_has_wrapped_is_held():
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    model = network()
    pruner, optimizer = halved(model), accelerator.prepare(OPTIMIZERS["AdamW"](model))
    for _ in range(2):
        pruner.hold(optimizer)
    pruner.step()
    train(model, pruner, optimizer, steps=2)
    assert len(optimizer.optimizer._optimizer_step_post_hooks) == 1


class Wrapper(optim.Optimizer):
    """Steps other optimizers; its own hooks are never called, since it does not initialise its base class."""

    def __init__(self, *inner):
        self.inner = inner
        self.param_groups = [group for optimizer in inner for group in optimizer.param_groups]

    def step(self):
        for optimizer in self.inner:
            optimizer.step()


def test_optimizers_in_a_wrapper_are_held():
    model = network()
    optimizer = Wrapper(
        optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9), optim.Adam(model[2].parameters(), lr=0.1)
    )
    train(model, halved(model), optimizer, steps=2)
    pruner = halved(model, hold=optimizer)
    pruner.step()
    train(model, pruner, optimizer, steps=2)
    with pytest.raises(TypeError, match=r"this Wrapper does not run step hooks: .* hold the optimizers that it"):
        pruner.hold(Wrapper())


def test_holding_twice_is_holding_once():
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["SGD"](model)
    for _ in range(3):
        pruner.hold(optimizer)
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_an_optimizer_held_after_the_cut_finds_the_weights_at_zero():
    model = network()
    pruner = halved(model)
    pruner.step()
    with torch.no_grad():
        model[0].weight.add_(1)
    pruner.hold(OPTIMIZERS["SGD"](model))
    assert_pruned_are_zero(pruner)


def test_masks_hold_when_the_pruner_is_gone():
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["AdamW"](model)
    pruner.hold(optimizer)
    pruner.step()
    witness = copy.copy(pruner.masks)
    gone = weakref.ref(pruner)
    del pruner
    gc.collect()
    assert gone() is None
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        assert all(not bool(model.get_parameter(n).grad[~kept].any()) for n, kept in witness.items())
        optimizer.step()
        assert all(not bool(model.get_parameter(n)[~kept].any()) for n, kept in witness.items())


def test_a_model_does_not_keep_its_pruner_or_its_optimizer_alive():
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["AdamW"](model)
    pruner.hold(optimizer)
    pruner.step()
    train(model, pruner, optimizer)
    left = [weakref.ref(pruner), weakref.ref(optimizer), weakref.ref(pruner._holder)]
    del pruner, optimizer
    gc.collect()
    assert [thing() for thing in left] == [None, None, None]
    nn.functional.cross_entropy(model(X), Y).backward()


def test_a_weight_that_is_thawed_later_is_held_from_its_first_gradient():
    model = network()
    model[0].weight.requires_grad_(False)
    pruner, optimizer = halved(model, include=["*.weight"]), OPTIMIZERS["SGD momentum decay"](model)
    pruner.hold(optimizer)
    assert not model[0].weight.requires_grad
    train(model, pruner, optimizer)
    pruner.step()
    train(model, pruner, optimizer)
    assert model[0].weight.grad is None
    model[0].weight.requires_grad_(True)
    kept = gradients_of_kept(model, pruner)
    model.zero_grad()
    nn.functional.cross_entropy(model(X), Y).backward()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) == nn.utils.get_total_norm(kept)
    train(model, pruner, optimizer, steps=3)
    model[0].weight.requires_grad_(False)
    train(model, pruner, optimizer, steps=2)


def test_a_frozen_base_is_pruned_while_adapters_train():
    model = nn.ModuleDict({"base": nn.Linear(6, 3), "adapter": nn.Linear(6, 3)})
    model["base"].requires_grad_(False)
    optimizer = optim.AdamW(model["adapter"].parameters(), lr=0.1)
    pruner = halved(model, include=["base.weight"], hold=optimizer)
    pruner.step()
    nn.functional.cross_entropy(model["base"](X) + model["adapter"](X), Y).backward()
    optimizer.step()
    pruner.check()
    model["base"].requires_grad_(True)
    with pytest.raises(ParameterGone, match="this AdamW updates none of the pruned parameters"):
        pruner.hold(optimizer)


def test_a_model_that_is_not_trained_can_be_pruned():
    model = network().requires_grad_(False)
    pruner = halved(model)
    pruner.step()
    assert_pruned_are_zero(pruner)
    assert not any(p.requires_grad for p in model.parameters())


# Nothing of the model is changed but its weights.


def test_the_forward_pass_and_the_state_keep_their_shape():
    plain, model = network(), network()
    pruner, optimizer = halved(model), OPTIMIZERS["SGD"](model)
    pruner.hold(optimizer)
    pruner.step()
    train(model, pruner, optimizer)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(type(p) is nn.Parameter for p in model.parameters())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert type(module) in (nn.Sequential, nn.Linear, nn.Tanh)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=INDUCTOR)])
@pytest.mark.parametrize("pruner_gets", ["the compiled model", "the model"])
def test_masks_hold_in_a_compiled_model(backend, pruner_gets):
    model = network()
    start = copy.deepcopy(model.state_dict())
    compiled = torch.compile(model, backend=backend)
    pruner = halved(compiled if pruner_gets == "the compiled model" else model)
    optimizer = OPTIMIZERS["SGD momentum decay"](compiled)
    pruner.hold(optimizer)
    assert list(pruner.masks) == ["0.weight", "2.weight"]
    plain = network()
    twin, its_optimizer = halved(plain), OPTIMIZERS["SGD momentum decay"](plain)
    twin.hold(its_optimizer)
    for _ in range(2):
        for p, o in ((pruner, optimizer), (twin, its_optimizer)):
            for _ in range(3):
                o.zero_grad()
                nn.functional.cross_entropy((compiled if p is pruner else plain)(X), Y).backward()
                o.step()
            p.step()
        torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
    assert pruner.masks == twin.masks
    assert_pruned_are_zero(pruner)
    pruner.rewind(start)
    assert_pruned_are_zero(pruner)


# Refusals.


@pytest.mark.parametrize("thing", [None, "SGD", optim.SGD, nn.Linear(1, 1)], ids=str)
def test_only_an_optimizer_is_held(thing):
    with pytest.raises(TypeError, match=r"hold needs a torch.optim.Optimizer, got "):
        halved(network()).hold(thing)


def test_the_optimizer_of_another_model_is_refused():
    model = network()
    with pytest.raises(ParameterGone, match=r"0\.weight, 2\.weight"):
        halved(model).hold(OPTIMIZERS["SGD"](network()))


# Stopping and going on.


def run(model, pruner, optimizer, steps):
    for _ in range(steps):
        train(model, pruner, optimizer, steps=2)
        pruner.step()
        train(model, pruner, optimizer, steps=1)


@pytest.mark.parametrize("name", ["SGD momentum decay", "AdamW", "Adafactor", "Rprop", "LBFGS"])
def test_a_resumed_run_is_bitwise_identical(name):
    def fresh(seed):
        model = network(seed)
        pruner, optimizer = halved(model, budget=pm.Sap(), scope="global"), OPTIMIZERS[name](model)
        pruner.hold(optimizer)
        return model, pruner, optimizer

    model, pruner, optimizer = fresh(0)
    run(model, pruner, optimizer, steps=2)
    file = io.BytesIO()
    torch.save({k: v.state_dict() for k, v in zip("mpo", (model, pruner, optimizer), strict=True)}, file)
    run(model, pruner, optimizer, steps=2)

    file.seek(0)
    state = torch.load(file, weights_only=True)
    again, its_pruner, its_optimizer = fresh(1)
    for thing, key in ((again, "m"), (its_pruner, "p"), (its_optimizer, "o")):
        thing.load_state_dict(state[key])
    run(again, its_pruner, its_optimizer, steps=2)

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert its_pruner.masks == pruner.masks
    assert [str(d) for d in its_pruner.decisions] == [str(d) for d in pruner.decisions]
    assert [d.index for d in its_pruner.decisions] == [d.index for d in pruner.decisions]


# On a CUDA device.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "optimizer", sorted(OPTIMIZERS.keys() - {"Adagrad fused"})
)  # which torch has for the CPU only
def test_masks_follow_the_model_to_another_device(optimizer):
    model = network()
    pruner = halved(model)
    pruner.step()
    model.cuda()
    optimizer = OPTIMIZERS[optimizer](model)
    pruner.hold(optimizer)
    train(model, pruner, optimizer, steps=3)
    pruner.step()
    train(model, pruner, optimizer, steps=3)
    model.cpu()
    assert_pruned_are_zero(pruner)
    pruner.step()
    assert pruner.density == 0.125


class Sam(optim.Optimizer):
    """Two steps in place of `step`, as the published code of SAM has them; `own` updates without an optimizer."""

    def __init__(self, parameters, own=False, by_data=False):
        super().__init__(parameters, {})
        self.own, self.by_data = own, by_data
        if not own:
            self.base_optimizer = optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    def _parameters(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self):
        for p in self._parameters():
            self.state[p]["before"] = p.detach().clone()
            p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def second_step(self):
        for p in self._parameters():
            p.data = self.state[p]["before"]
            if self.own:
                moved = self.state[p].get("speed", torch.zeros_like(p)).mul(0.9).add(p.grad)
                self.state[p]["speed"] = moved
                (p.data if self.by_data else p).add_(moved, alpha=-0.1)
        if not self.own:
            self.base_optimizer.step()


def sam_steps(model, optimizer, steps=2):
    for _ in range(steps):
        for step in (optimizer.first_step, optimizer.second_step):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()
            step()


def test_the_base_optimizer_of_sam_is_held_with_it():
    model = network()
    optimizer = Sam(model.parameters())
    sam_steps(model, optimizer)
    pruner = halved(model)
    pruner.hold(optimizer)
    pruner.step()
    sam_steps(model, optimizer)
    assert_pruned_are_zero(pruner)
    pruner.check()


@pytest.mark.parametrize("by_data", [False, True])
def test_an_optimizer_whose_step_is_never_called_is_noticed(by_data, tmp_path):
    model = network()
    optimizer = Sam(model.parameters(), own=True, by_data=by_data)
    sam_steps(model, optimizer)
    pruner = halved(model)
    pruner.hold(optimizer)
    pruner.step()
    pruner.check()
    old = {n: s["speed"].clone() for n, s in zip("abcd", optimizer.state.values(), strict=True)}
    for state, before in zip(optimizer.state.values(), old.values(), strict=True):
        state["speed"] = before + 1  # momentum that no mask has seen
    with pytest.warns(UserWarning, match=r"are no longer zero: something that is not held") as said:
        sam_steps(model, optimizer)
    assert len(said) == 1
    with pytest.raises(NotHeld, match=r"36 pruned weights \(0.weight, 2.weight\).*apply_\(pruner.weights\)"):
        pruner.check()
    with pytest.warns(UserWarning, match="36 pruned weights"):
        pm.save(tmp_path / "a.safetensors", model)
    pruner.masks.apply_(pruner.weights)
    pruner.check()
    pm.save(tmp_path / "a.safetensors", model)


def test_held_steps_are_not_looked_at():
    model = network()
    pruner, optimizer = halved(model), OPTIMIZERS["SGD momentum decay"](model)
    pruner.hold(optimizer)
    pruner.step()
    train(model, pruner, optimizer)
    looked = []
    pruner._holder.back = lambda: looked.append(1)
    versions = dict(pruner._holder._seen)
    assert versions == {n: p._version for n, p in model.named_parameters() if p.dim() > 1}
    train(model, pruner, optimizer, steps=3)
    assert looked == []


def test_the_pruner_that_was_last_told_to_hold_an_optimizer_holds_its_masks():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = pm.Pruner(model, budget=pm.FixedRatio(0.5), hold=optimizer)
    first.step()

    def left():
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        return int(model.weight.count_nonzero())

    assert left() == 8
    pm.Pruner(model, zeros="count")  # only looks
    assert left() == 8
    last = pm.Pruner(model, zeros="count", hold=optimizer)
    assert (left(), last.density) == (16, 1)
    last.step(budget=pm.FixedRatio(0.25))
    assert left() == 12
    first.step()  # holds its masks again
    assert left() == 4
