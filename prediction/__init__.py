"""Can the density at which a network loses a point be predicted? Part C of results/how-far/PLAN.md."""
