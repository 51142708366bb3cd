"""Attacks on palmette: kills, power cuts, damaged and made-up files, optimizers; run by `make campaign`."""
