"""Repair: after a cut, solve for the remaining weights so that outputs on calibration inputs stay put."""
