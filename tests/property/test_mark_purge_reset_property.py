"""The at-least-once protocol against a model of Kafka and of the table, as a reader of all records sees it.
Faults of every kind happen, and any step may be the last one, or come late.

A record may repeat, but always before the next record of its key."""

from hypothesis import Phase, settings

from tests.property.examples import examples
from tests.relay.relayed import Relayed


class Marked(Relayed):
    """The same model, with marks."""

    marking = True


TestMarkPurgeReset = Marked.TestCase
TestMarkPurgeReset.settings = settings(
    max_examples=examples(300), stateful_step_count=50, derandomize=True, deadline=None, phases=[Phase.generate]
)
