"""All kinds of files to damage."""

from campaign.corpus.others import OTHERS
from campaign.corpus.weights import WEIGHTS

KINDS = {"fuzz-weights": WEIGHTS, "fuzz-others": OTHERS}
"""Row of the campaign -> name of a kind of file -> its reader."""
