"""What on-policy learners need: rollouts of a policy, and the advantages and returns of their steps."""

from ._advantages import Advantages, discounted_returns, gae
from ._rollout import Rollout, rollout

__all__ = ["Advantages", "Rollout", "discounted_returns", "gae", "rollout"]
