"""Repair: after a cut, solve for the remaining weights to preserve outputs on calibration inputs."""
