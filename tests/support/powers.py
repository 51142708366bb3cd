"""The p and q at which the PQ Index is tested: a grid over the range of the paper, and its corners."""

GRID_P = [k / 10 for k in range(1, 11)]
GRID_Q = [k / 10 for k in range(10, 21)]
GRID = [(p, q) for p in GRID_P for q in GRID_Q if p != q]
CORNERS = [(0.1, 1.0), (0.1, 2.0), (0.5, 1.0), (0.9, 1.0), (1.0, 1.1), (1.0, 2.0)]
