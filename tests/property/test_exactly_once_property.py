"""The exactly-once protocol against a model of Kafka and of the table: any step may be the last, or be taken late."""

from hypothesis import Phase, settings

from tests.property.examples import examples
from tests.relay.relayed import Relayed

TestExactlyOnce = Relayed.TestCase
# Not shrunk: that takes minutes, and what a failure says first is enough to know the rule that was broken.
TestExactlyOnce.settings = settings(
    max_examples=examples(600), stateful_step_count=50, derandomize=True, deadline=None, phases=[Phase.generate]
)
