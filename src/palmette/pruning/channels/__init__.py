"""Channels that go together: follow them through the graph of a model, group, score and mask them."""
