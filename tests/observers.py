"""Observers of runs, for tests."""

from palmette.studies.in_step import Observer


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
