"""Rollouts of a policy, and the advantages and returns of their steps, for on-policy learning."""

from ._advantages import Advantages, discounted_returns, gae
from ._rollout import Rollout, rollout

__all__ = ["Advantages", "Rollout", "discounted_returns", "gae", "rollout"]
