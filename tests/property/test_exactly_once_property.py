"""The exactly-once protocol against a model of Kafka and of the table: any step may be the last one, or come late."""

from hypothesis import Phase, settings

from tests.property.examples import examples
from tests.relay.relayed import Relayed

TestExactlyOnce = Relayed.TestCase
# Without shrinking, which takes minutes: the first failure is enough to identify the broken rule.
TestExactlyOnce.settings = settings(
    max_examples=examples(600), stateful_step_count=50, derandomize=True, deadline=None, phases=[Phase.generate]
)
