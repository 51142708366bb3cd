"""The script that compares repairs, for a network of a few hundred weights, and the page of what it found."""

import make_repair
import pytest
import torch
import transformers


def test_every_row_cuts_to_its_sparsity_and_repairs():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=20, intermediate_size=30, num_hidden_layers=2, num_attention_heads=2
    )
    config.tie_word_embeddings, config.initializer_range = True, 0.3
    dense = transformers.LlamaForCausalLM(config).eval()
    tokens = [torch.randint(40, (1, 30)) for _ in range(5)]
    todo = [("index", 0.5, method) for method in make_repair.METHODS] + [("OWL", 0.5, "Wanda")]
    rows = list(make_repair.rows(dense, [{"input_ids": ids} for ids in tokens], tokens[:2], todo))
    assert {make_repair.keyed(*key) for key in todo} == {
        (row["method"], row["shares"], row["sparsity"]) for row in rows
    }
    assert all(float(row["density"]) == pytest.approx(0.5, abs=0.02) for row in rows)
    assert len({row["perplexity"] for row in rows}) == len(rows)


def test_page_shows_the_rows_on_file():
    page = make_repair.PAGE.read_text(encoding="utf-8")
    assert "\n".join(make_repair.table(make_repair.on_file())) in page
