"""The at-least-once protocol against a model of Kafka and of the table, as a reader of everything sees it:
faults of every kind, and any step may be the last, or be taken late.

A record may come again, but never behind one that follows it within its key."""

from hypothesis import Phase, settings

from tests.property.examples import examples
from tests.relay.relayed import Relayed


class Marked(Relayed):
    """The same, with marks."""

    marking = True


TestMarkPurgeReset = Marked.TestCase
TestMarkPurgeReset.settings = settings(
    max_examples=examples(300), stateful_step_count=50, derandomize=True, deadline=None, phases=[Phase.generate]
)
