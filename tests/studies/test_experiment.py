from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from palmette.pruning.budgets import Allocated, Densities, FixedRatio, Sap, TailMass
from palmette.pruning.methods import METHODS, SALIENCIES, Method
from palmette.pruning.saliency import BUILDERS
from palmette.pruning.stopping import AtDensity, IndexTurnsUp, SmallCut
from palmette.pruning.targets import Bisect
from palmette.reports.comparison import name_of
from palmette.studies.disk import version1
from palmette.studies.experiment import Experiment, OwnExperiment, read_spec
from palmette.studies.settings import seeds
from palmette.studies.spec import ADDED, RunSpec
from palmette.training.recipe import Recipe
from palmette.training.rewinding import Rewind

MANY = {
    "data": "fashion-mnist",
    "model": "cnn",
    "scope": "neuron",
    "rewind": "epoch:5",
    "stop": "index-turns-up, density:.05",
    "epochs": 20,
    "weight_decay": 1e-5,
    "nesterov": False,
    "clip": None,
    "precision": "bfloat16",
    "compile": True,
}
# Folders of version 1 bear these names: a change that moves one loses them.
IDS = [
    ({}, "digits-mlp-sap-p0.5-q1-s0-44136fa3"),
    ({"p": 1, "q": 2}, "digits-mlp-sap-p1-q2-s0-08150efd"),
    ({"method": "lottery-ticket"}, "digits-mlp-lottery-ticket-r0.2-s0-cfc8f104"),
    ({"method": "one-shot", "ratio": 0.3, "seed": 7}, "digits-mlp-one-shot-r0.3-s7-dd921530"),
    (MANY, "fashionmnist-cnn-sap-p0.5-q1-s0-04e61907"),
    (
        {"data": "/home/me/My Pictures.npz", "model": "my.models:net"},
        "my-pictures-npz-my-models-net-sap-p0.5-q1-s0-d3f355e7",
    ),
]


@pytest.mark.parametrize(("given", "name"), IDS)
def test_folders_of_version_1_keep_their_names(given, name):
    assert Experiment(**given).earlier_ids[-1] == name
    assert Experiment(**given).id not in Experiment(**given).earlier_ids


def test_a_run_is_looked_for_where_version_1_left_it(tmp_path):
    experiment = Experiment()
    assert experiment.folder_in(tmp_path) == tmp_path / experiment.id
    (tmp_path / "digits-mlp-sap-p0.5-q1-s0-44136fa3").mkdir()
    assert experiment.folder_in(tmp_path) == tmp_path / "digits-mlp-sap-p0.5-q1-s0-44136fa3"
    (tmp_path / experiment.id).mkdir()
    assert experiment.folder_in(tmp_path) == tmp_path / experiment.id


def test_a_method_that_version_1_did_not_have_had_no_id_then():
    assert len(Experiment().earlier_ids) == 4
    assert len(Experiment(method="tail-mass").earlier_ids) == 3
    assert len(Experiment(saliency="input-weighted").earlier_ids) == 3


def test_a_search_had_no_id_in_earlier_versions():
    assert len(Experiment(tolerance=0.01).earlier_ids) == len(Experiment(label_noise=0.1).earlier_ids) == 2
    assert len(Experiment(clip_over="all").earlier_ids) == 1
    assert Experiment(scope="layer", allocate="index").earlier_ids == []


def test_files_of_version_2_are_read_and_keep_their_folder(tmp_path):
    lines = Experiment(q=2).to_toml().replace("version = 5", "version = 2").splitlines(True)
    text = "".join(
        line
        for line in lines
        if not line.startswith(("tolerance", "label_noise", "clip_over", "densities", "allocate"))
    )
    assert Experiment.from_toml(text) == Experiment(q=2)
    (tmp_path / "digits-mlp-sap-p0.5-q2-s0-db14fe2c").mkdir()
    assert Experiment(q=2).folder_in(tmp_path).name == "digits-mlp-sap-p0.5-q2-s0-db14fe2c"


def test_files_of_version_3_are_read_and_keep_their_folder(tmp_path):
    lines = Experiment(tolerance="1%").to_toml().replace("version = 5", "version = 3").splitlines(True)
    text = "".join(line for line in lines if not line.startswith(("clip_over", "densities", "allocate")))
    assert Experiment.from_toml(text) == Experiment(tolerance="1%")
    (tmp_path / "digits-mlp-sap-p0.5-q1-s0-13f3b58f").mkdir()
    assert Experiment(tolerance="1%").folder_in(tmp_path).name == "digits-mlp-sap-p0.5-q1-s0-13f3b58f"


def test_files_of_version_4_are_read_and_keep_their_folder(tmp_path):
    lines = Experiment(q=2).to_toml().replace("version = 5", "version = 4").splitlines(True)
    assert Experiment.from_toml("".join(li for li in lines if not li.startswith("allocate"))) == Experiment(q=2)
    (tmp_path / "digits-mlp-sap-p0.5-q2-s0-6e4700ea").mkdir()
    assert Experiment(q=2).folder_in(tmp_path).name == "digits-mlp-sap-p0.5-q2-s0-6e4700ea"


def test_files_of_version_1_have_the_defaults_of_their_time(tmp_path, monkeypatch):
    (tmp_path / "experiment.toml").write_text("seed = 3\nepochs = 7\n")
    monkeypatch.setitem(version1.DEFAULTS, "batch", 64)  # as if today's default were another
    assert read_spec(tmp_path / "experiment.toml") == Experiment(seed=3, epochs=7, batch=64)


def test_the_defaults_of_version_1_are_those_that_were_never_written():
    assert {**Experiment().settings(), **version1.DEFAULTS} == Experiment().settings()
    added = {name for version in (3, 4, 5) for name in ADDED[version]}
    later = set(Experiment().settings()) - set(version1.DEFAULTS)
    assert later == {"saliency", "own", *added} - {"maximize", "initial"}


@pytest.mark.parametrize(("line", "message"), [("seed", "it lacks seed"), ("version", "there is no")])
def test_a_file_of_version_2_lacks_no_setting(line, message, tmp_path):
    text = "".join(li for li in Experiment(seed=3).to_toml().splitlines(True) if not li.startswith(line))
    (tmp_path / "experiment.toml").write_text(text if line == "seed" else text + "new = 1\n")
    with pytest.raises(ValueError, match=message):
        read_spec(tmp_path / "experiment.toml")


def test_a_newer_version_is_refused():
    with pytest.raises(ValueError, match="version must be 1 to 5, got 6"):
        Experiment.from_toml("version = 6")
    with pytest.raises(ValueError, match="version must be 1 to 5, got True"):
        Experiment.from_toml("version = true")


def test_densities_in_any_spelling_are_one_experiment():
    value = Method(budget=Densities([0.5, 0.25]))
    made = [Experiment(method="densities", densities=".5, 0.250"), Experiment(method=value)]
    assert made[0] == made[1]
    assert made[0].budget == value.budget
    assert Experiment.from_toml(made[0].to_toml()) == made[0]


def test_a_method_is_a_name_a_value_or_your_own(tmp_path, monkeypatch):
    value = Method(budget=FixedRatio(0.3), saliency="dense-magnitude")
    assert Experiment(method=value) == Experiment(method="one-shot", ratio=0.3)
    assert Experiment(method="lottery-ticket", saliency="dense-magnitude") == Experiment(method="one-shot")
    by_inputs = {"saliency": "input-weighted"}
    assert Experiment(method="one-shot", **by_inputs) == Experiment(method="lottery-ticket", **by_inputs)
    tail = Experiment(method=Method(budget=TailMass(eta=0.2), saliency="input-weighted"))
    assert (tail.method, tail.eta, tail.saliency) == ("tail-mass", 0.2, "input-weighted")
    assert tail.pruning == Method(budget=TailMass(eta=0.2), saliency="input-weighted", label="Tail Mass")
    assert Experiment.from_toml(tail.to_toml()) == tail
    (tmp_path / "mine.py").write_text("from palmette import Method, Sap\nhalf = Method(budget=Sap(gamma=0.5))\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = Experiment(method="mine:half")
    assert (own.budget, own.label, own.differences()) == (Sap(gamma=0.5), "mine:half", {"method": "mine:half"})
    by_inputs = Experiment(method="mine:half", saliency="input-weighted")
    assert by_inputs.pruning == Method(budget=Sap(gamma=0.5), saliency="input-weighted")
    assert by_inputs.id != own.id
    assert Experiment.from_toml(own.to_toml()) == own
    with pytest.raises(ValueError, match="p belongs to method='sap' or 'tail-mass', got p=1"):
        Experiment(method="mine:half", p=1)
    with pytest.raises(ValueError, match="has no 'whole'"):
        Experiment(method="mine:whole")
    (tmp_path / "halving.py").write_text("from palmette import Bisect, Method\nhalf = Method(budget=Bisect())\n")
    with pytest.raises(ValueError, match="method='halving:half' needs a tolerance"):
        Experiment(method="halving:half")
    assert Experiment(method="halving:half", tolerance="0.01").tolerance == "0.01"


def test_a_method_of_your_own_that_changes_is_another_experiment(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file, made = tmp_path / "changing.py", []
    for ratio in (0.5, 0.1):
        file.write_text(f"from palmette import *\nm = Method(budget=FixedRatio({ratio}), label='Half')\n")
        sys.modules.pop("changing", None)
        importlib.invalidate_caches()
        made.append(Experiment(method="changing:m"))
    first, second = made
    assert first != second
    assert first.id != second.id
    assert (first.label, first.own) == ("Half (changing:m)", "changing:m Half: FixedRatio(ratio=0.5) by magnitude")
    file.unlink()
    sys.modules.pop("changing")
    assert Experiment.from_toml(first.to_toml()) == first  # read without the module
    assert replace(first, method="sap").own == ""


def test_a_method_value_that_no_file_can_hold_is_refused():
    class Own(Sap):
        pass

    with pytest.raises(ValueError, match="must be given as method='module:name'"):
        Experiment(method=Method(budget=Own()))
    with pytest.raises(ValueError, match="ratio is given twice"):
        Experiment(method=Method(budget=FixedRatio()), ratio=0.3)
    assert replace(Experiment(), method=Method(budget=TailMass())) == Experiment(method="tail-mass")


def test_shares_of_layers_are_a_value_a_setting_and_a_flag(tmp_path, monkeypatch):
    value = Method(budget=Allocated(FixedRatio(0.3), by="erk"), saliency="dense-magnitude")
    made = Experiment(method=value, scope="layer")
    assert made == Experiment(method="one-shot", ratio=0.3, scope="layer", allocate="erk")
    assert (made.pruning, made.flags()[-2:]) == (value, ["--allocate", "erk"])
    assert Experiment.from_toml(made.to_toml()) == made
    assert name_of(made) == "One Shot, ratio=0.3, allocate=erk"
    spread = Experiment(scope="neuron", allocate="index:.10")
    assert (spread.allocate, spread.budget) == ("index:0.1", Allocated(Sap(), spread=0.1))
    assert Experiment(scope="neuron", allocate="index:0.15").allocate == "index"
    search = Experiment(method="bisect", tolerance=0.01, scope="layer", allocate="sap")
    assert search.budget == Allocated(Bisect(), by="sap")
    (tmp_path / "sharing.py").write_text("from palmette import *\nm = Method(budget=Allocated(Sap()))\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert Experiment(method="sharing:m", scope="layer").budget == Allocated(Sap())
    for given in ({"method": value}, {"allocate": "index"}, {"method": "sharing:m"}):
        with pytest.raises(ValueError, match="scope 'global' ranks them together; use scope 'layer' or 'neuron'"):
            Experiment(**given)
    for text in ("size", "index:", "index:0.6", "index:x"):
        with pytest.raises(ValueError, match=f"allocate must be one of index, uniform, .* got '{text}'"):
            Experiment(scope="layer", allocate=text)
    with pytest.raises(ValueError, match="allocate is given twice"):
        Experiment(method=value, scope="layer", allocate="index")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Further(Method):
    """A method with one field more, as a later version may have."""

    grow: str = ""


GROWING = Further(budget=FixedRatio(), grow="random")


def test_a_field_of_a_method_is_never_dropped(monkeypatch):
    with pytest.raises(ValueError, match="so a custom grow must be given as method='module:name' of a Method"):
        Experiment(method=GROWING)
    assert Experiment(method=Further(budget=FixedRatio(0.3))) == Experiment(method="lottery-ticket", ratio=0.3)
    own = Experiment(method=f"{__name__}:GROWING")
    assert own.own.endswith(": FixedRatio(ratio=0.2) by magnitude, grow='random'")
    assert own.pruning == GROWING
    monkeypatch.setattr(sys.modules[__name__], "GROWING", replace(GROWING, grow="top"))
    assert Experiment(method=f"{__name__}:GROWING").id != own.id


def test_a_named_method_with_a_field_more_keeps_its_name(monkeypatch):
    known = {**METHODS, "rigl": GROWING}
    for module in ("palmette.pruning.methods", "palmette.studies.spec"):
        monkeypatch.setattr(f"{module}.METHODS", known)
    made = Experiment(method="rigl")
    assert (made.method, made.pruning) == ("rigl", GROWING)
    assert Experiment(method=GROWING) == made
    assert Experiment(method="lottery-ticket").method == "lottery-ticket"


def test_a_run_of_ones_own_network_has_an_id_that_copies_share():
    made = OwnExperiment(model="Net", run="5f2a9c01", method="lottery-ticket", tolerance=0.5, evaluate=True)
    assert made.id == "net-lottery-ticket-r0.2-5f2a9c01"
    assert OwnExperiment.from_toml(made.to_toml()) == made


def test_every_parameter_of_a_method_is_a_setting():
    settings = {f.name for f in dataclasses.fields(RunSpec)}
    assert {f.name for m in METHODS.values() for f in m.budget.parameters()} <= settings
    assert set(SALIENCIES) == set(BUILDERS)


def test_every_setting_that_changes_moves_the_id():
    changes = {
        "data": "MNIST", "model": "cnn", "p": 0.25, "q": 2.0, "eta": 0.5, "gamma": 2.0, "beta": 0.5,
        "scope": "layer", "rounds": 3, "seed": 1, "rewind": "fine-tune", "stop": "small-cut", "validation": 10,
        "epochs": 5, "batch": 10, "optimizer": "adam", "learning_rate": 0.2, "momentum": 0.5, "nesterov": False,
        "weight_decay": 0.0, "schedule": "step", "warm_up": 1, "clip": None, "label_smoothing": 0.1,
        "precision": "tf32", "compile": True, "method": "one-shot", "saliency": "input-weighted",
        "tolerance": "1%", "label_noise": 0.1, "clip_over": "all",
    }  # fmt: skip
    made = [Experiment(), *(Experiment(**{name: value}) for name, value in changes.items())]
    made += [Experiment(method="one-shot", ratio=0.5), Experiment(method="densities", densities="0.9")]
    made += [Experiment(scope="layer", allocate="erk")]
    assert set(changes) | {"ratio", "densities", "own", "allocate"} == {
        f.name for f in dataclasses.fields(Experiment)
    }
    assert len({e.id for e in made}) == len(made)
    assert len({e.id.rsplit("-", 1)[1] for e in made}) == len(made)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"p": 1, "q": 2}, {"p": 1.0, "q": 2.0}),
        ({"p": Fraction(1, 4)}, {"p": np.float64(0.25)}),
        ({"seed": np.int64(3)}, {"seed": 3}),
        ({"eta": -0.0}, {}),
        ({"data": "cifar-10"}, {"data": "CIFAR10"}),
        ({"rewind": "epoch:05"}, {"rewind": "epoch:5"}),
        ({"stop": "small-cut:1e-2 ,index-turns-up"}, {"stop": "small-cut:0.01,index-turns-up:2"}),
        ({"clip": "none"}, {"clip": None}),
        ({"tolerance": 0.01}, {"tolerance": " 1e-2"}),
        (
            {"method": "densities", "densities": "cubic:0.2:2"},
            {"method": "densities", "densities": "0.3,0.2"},
        ),
        ({"tolerance": "1.0%"}, {"tolerance": "1%"}),
        ({"tolerance": "not-worse"}, {"tolerance": "not-worse:.95"}),
    ],
)
def test_one_experiment_has_one_id_however_it_is_spelt(one, other):
    assert Experiment(**one) == Experiment(**other)
    assert Experiment(**one).id == Experiment(**other).id
    assert Experiment(**one).to_toml() == Experiment(**other).to_toml()


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ("C:\\My data\\", "a:b"),
        ("/data/", "x.y:Z.w"),
        ("日本", "日:本"),
        ("nul.npz", "mlp"),
        ("..", "a/b:c?*"),
        ("y" * 300, "mlp"),
    ],
)
def test_an_id_is_a_safe_and_short_file_name(data, model):
    name = Experiment(data=data, model=model, seed=2**63 - 1).id
    assert re.fullmatch(r"[a-z0-9][a-z0-9_.-]*-[0-9a-f]{8}", name)
    assert len(name) <= 120
    assert ".." not in name
    assert name.split(".")[0] not in ("nul", "con", "aux")


def test_the_parts_are_what_the_settings_say():
    many = Experiment(**MANY)
    assert many.budget == Sap(p=0.5, q=1.0, eta=0.0, gamma=1.0, beta=0.9)
    assert many.rewinding == Rewind("epoch", 5)
    assert many.rules == (IndexTurnsUp(2), AtDensity(0.05))
    assert many.recipe == Recipe(
        epochs=20, weight_decay=1e-5, nesterov=False, clip=None, precision="bfloat16", compile=True
    )
    assert Experiment(method="lottery-ticket", ratio=0.3).budget == FixedRatio(0.3)
    assert Experiment(stop="small-cut:0.5").rules == (SmallCut(0.5),)
    assert Experiment().rules == ()


def test_the_defaults_are_the_papers():
    plain = Experiment()
    assert plain.recipe == Recipe()
    assert (plain.scope, plain.rounds, plain.rewind, plain.ratio) == ("global", 30, "init", 0.2)
    assert plain.differences() == {}
    assert plain.flags() == []


FLOATS = [0.1 + 0.2, 5e-324, 1e-5, 1 / 3, 1e16, 1.7976931348623157e308]


@pytest.mark.parametrize(
    "given",
    [given for given, _ in IDS]
    + [{"eta": x} for x in FLOATS]
    + [{"data": 'a "quoted" \\ 日本 😀 # = path', "seed": 2**63 - 1}],
)
def test_toml_comes_back_exactly_from_text_and_file(given, tmp_path):
    made = Experiment(**given)
    assert Experiment.from_toml(made.to_toml()) == made
    file = tmp_path / "experiment.toml"
    file.write_text(made.to_toml(), encoding="utf-8-sig")
    assert Experiment.from_toml(file) == Experiment.from_toml(str(file)) == made
    assert Experiment.from_toml(file).to_toml() == made.to_toml()


def test_toml_holds_every_setting():
    text = Experiment(data="/tmp/x", weight_decay=1e-5, clip=None, nesterov=False).to_toml()
    first, *lines = text.splitlines()
    assert first.startswith("# x-mlp-sap-p0.5-q1-s0-")
    assert [line.split(" = ")[0] for line in lines] == [
        "version",
        *(f.name for f in dataclasses.fields(Experiment)),
    ]
    expected = {'data = "/tmp/x"', "nesterov = false", "weight_decay = 1e-05", 'clip = "none"', "rounds = 30"}
    assert expected <= set(lines)


def test_flags_say_what_differs():
    assert Experiment(**MANY | {"nesterov": True}).flags() == [
        "--data", "FashionMNIST", "--model", "cnn", "--scope", "neuron", "--rewind", "epoch:5",
        "--stop", "index-turns-up:2,density:0.05", "--epochs", "20", "--weight-decay", "1e-05", "--clip", "none",
        "--precision", "bfloat16", "--compile",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 5", "there is no setting 'epoch'; did you mean 'epochs'?"),
        ("learning-rate = 0.1", "there is no setting 'learning-rate'; did you mean 'learning_rate'?"),
        ("[sap]\np = 1", "there is no setting 'sap'; a file with tables is a grid, for `palmette sweep`"),
        ("epochs = 5.0", "epochs must be a whole number, got epochs=5.0"),
        ("epochs = true", "epochs must be a whole number, got epochs=True"),
        ('p = "0.5"', "p must be a number, got p='0.5'"),
        ("p = true", "p must be a number, got p=True"),
        ("nesterov = 1", "nesterov must be true or false, got nesterov=1"),
        ("stop = ['small-cut']", "stop must be text, got stop=['small-cut']"),
        ("clip = 'off'", "clip must be a number, got clip='off'"),
        ("eta = inf", "eta must be finite, got eta=inf"),
        ("p = ", "Invalid value"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(text, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Experiment.from_toml(text)
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    with pytest.raises((TypeError, ValueError), match=re.escape(f"{file}: {message}")):
        Experiment.from_toml(file)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no experiment at 'none\.toml'"):
        Experiment.from_toml("none.toml")
    with pytest.raises(FileNotFoundError, match="no experiment at"):
        Experiment.from_toml(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"bytes\.toml: .* not UTF-8 text; save it as UTF-8"):
        Experiment.from_toml(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"method": "lottery-ticket", "p": 1.0},
            "p belongs to method='sap' or 'tail-mass', got p=1.0 with method='lottery-ticket'",
        ),
        (
            {"method": "one-shot", "gamma": 2},
            "gamma belongs to method='sap', got gamma=2.0 with method='one-shot'",
        ),
        (
            {"ratio": 0.3},
            "ratio belongs to method='lottery-ticket' or 'one-shot', got ratio=0.3 with method='sap'",
        ),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum belongs to optimizer='sgd', got momentum=0.5 with"),
        ({"rewind": "epoch:5", "epochs": 4}, "rewind=epoch:5 needs a recipe of at least 5 epochs, got 4"),
        (
            {"method": "SAP"},
            "method must be one of sap, lottery-ticket, one-shot, tail-mass, densities, interpolate, bisect, or",
        ),
        (
            {"scope": "network"},
            "scope must be one of 'neuron', 'layer', 'global', 'channel', 'n:m', got 'network'",
        ),
        ({"model": "mpl"}, "model must be one of linear, mlp"),
        ({"model": "module:"}, "or module:function, got 'module:'"),
        ({"data": " "}, "data must be the name of a data set or a path, got ' '"),
        ({"data": "a\nb"}, "data must be text without control characters, got data='a\\nb'"),
        ({"rounds": -1}, "rounds must be at least 0 and below 2**63, got rounds=-1"),
        ({"seed": -1}, "seed must be at least 0 and below 2**63, got seed=-1"),
        ({"validation": -5}, "validation must be at least 0"),
        ({"epochs": -1}, "epochs must be at least 0"),
        ({"batch": 0}, "batch must be at least 1, got batch=0"),
        ({"weight_decay": float("nan")}, "weight_decay must be finite, got weight_decay=nan"),
        ({"p": 2.0}, "got p=2.0, q=1.0"),
        ({"beta": 0}, "beta must be above 0"),
        ({"rewind": "start"}, "rewind must be init, epoch:k, learning-rate or fine-tune, got 'start'"),
        (
            {"stop": "later"},
            "stop must consist of auto, accuracy-drops, density, small-cut, index-turns-up, got 'later' in stop=",
        ),
        ({"method": "interpolate"}, "method='interpolate' needs a tolerance, such as 0.01, to search with"),
        ({"method": "bisect", "stop": "auto"}, "method='bisect' needs a tolerance"),
        ({"tolerance": -0.1}, "tolerance must be a number of at least 0, got tolerance=-0.1"),
        ({"tolerance": "much"}, "a confidence such as 'not-worse:0.95', got 'much'"),
        ({"tolerance": "not-worse:1"}, "at least 0.5 and below 1, got 1.0"),
        ({"label_noise": 1.5}, "label_noise must be between 0 and 1, got label_noise=1.5"),
        ({"stop": "small-cut,"}, "got '' in stop='small-cut,'"),
        ({"stop": "density"}, "stop='density' needs a number such as density:0.05"),
        ({"stop": "accuracy-drops:2"}, "between 0 and 1, got by=2.0"),
        ({"stop": "density:2"}, "density must be between 0 and 1, got density=2.0"),
        ({"stop": "density:nan"}, "density must be between 0 and 1, got density=nan"),
        ({"stop": "index-turns-up:1.5"}, "needs a number such as index-turns-up:2"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Experiment(**given)


def test_a_change_is_checked_like_a_new_experiment():
    assert replace(Experiment(p=1, q=2), seed=4) == Experiment(p=1, q=2, seed=4)
    with pytest.raises(ValueError, match="p belongs to method='sap' or 'tail-mass'"):
        replace(Experiment(p=1, q=2), method="one-shot")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", [0]), ("0..3,7", [0, 1, 2, 3, 7]), (" 5 , 1 .. 2 ", [5, 1, 2]), ("4..4", [4]), ("0..2,1", [0, 1, 2]),
        (str(2**63 - 1), [2**63 - 1]),
    ],
)  # fmt: skip
def test_seeds_are_read_as_they_are_written(text, numbers):
    assert seeds(text) == numbers


@pytest.mark.parametrize("text", ["", "1,", "3..1", "-1", "1.5", "0..", "a", "0...3", "0.." + "9" * 19, "1" * 100])
def test_seeds_that_are_none_are_refused_with_an_example(text):
    with pytest.raises(ValueError, match=re.escape("as 0..3,7, got ")) as refused:
        seeds(text)
    assert repr(text) in str(refused.value)
