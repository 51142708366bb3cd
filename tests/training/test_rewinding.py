from __future__ import annotations

import pytest

from palmette.training.recipe import Recipe
from palmette.training.rewinding import Rewind


def test_rewinds_parse_their_own_text():
    for text in ("init", "epoch:3", "learning-rate", "fine-tune"):
        assert str(Rewind.parse(text)) == text
    for wrong in ("", "epoch", "epoch:", "epoch:-1", "epoch:x", "lr", "init:2"):
        with pytest.raises(ValueError, match="epoch:k"):
            Rewind.parse(wrong)
    with pytest.raises(ValueError, match="at least 9 epochs, got 8"):
        Rewind("epoch", 9).check(Recipe(epochs=8))


def test_each_rewind_defines_start_weights_and_schedule():
    recipe = Recipe(epochs=4, learning_rate=1.0)
    assert Rewind("init").goes_back
    assert Rewind("epoch", 1).goes_back
    assert not Rewind("learning-rate").goes_back
    assert list(Rewind("epoch", 1).epochs(4)) == [1, 2, 3]
    assert list(Rewind("learning-rate").epochs(4)) == [0, 1, 2, 3]
    assert Rewind("learning-rate").learning_rate_at(recipe, 0) == 1.0
    assert {Rewind("fine-tune").learning_rate_at(recipe, e) for e in range(4)} == {recipe.learning_rate_at(3)}
