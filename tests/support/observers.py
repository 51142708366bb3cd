"""Observers of runs and of what they leave behind, for tests."""

from palmette.studies.observer import Observer


class EndsAfter(Observer):
    """Asks for the end after so many epochs; remembers what it was told."""

    def __init__(self, epochs=None):
        self.epochs, self.seen, self.records, self.outcomes, self.said = epochs, [], [], [], []

    def epoch(self, experiment, progress):
        self.seen.append((experiment.id, progress))

    def recorded(self, experiment, record):
        self.records.append((experiment.id, record["round"]))

    def ended(self, experiment, outcome):
        self.outcomes.append((experiment.id, outcome))

    def interrupts(self):
        return self.epochs is not None and len(self.seen) >= self.epochs

    def say(self, text):
        self.said.append(text)


def records_are_the_same(folder, runs):
    """Of runs that were broken off and of those that were not."""
    for e in runs:
        whole, broken = (folder / name / e.id / "records.jsonl" for name in ("whole", "broken"))
        assert whole.read_bytes() == broken.read_bytes()
