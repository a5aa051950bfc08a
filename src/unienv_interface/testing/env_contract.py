"""The environment contract as tests for your own environments.

    check_env(MyEnv())                        # raises an EnvContractError at the first broken clause

    class TestMyEnv(EnvContract):             # or with pytest, one test per clause
        def make_env(self):
            return MyEnv()

`unienv_interface.env_base.env` describes the contract in words.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Collection, Iterator

from ..env_base.env import Env
from . import _env_clauses as clauses
from ._env_probe import CLAUSES, Clause, EnvContractError, episode
from .snapshots import difference

__all__ = ["EnvContract", "EnvContractError", "check_env"]


def check_env(env: Env, *, skip: Collection[str] = ()) -> None:
    """Check an environment against every clause of the contract, and close it.

    Parameters
    ----------
    env
        The environment, single or batched.
    skip
        Names of clauses to leave out: a robot, for example, cannot promise `seed_fixes_the_episode`.

    Raises
    ------
    EnvContractError
        The environment breaks a clause: which one, what was found, and what the contract wants.
    ValueError
        `skip` has a name that is no clause.

    Examples
    --------
    >>> check_env(env)
    """
    unknown = sorted(set(skip) - set(CLAUSES))
    if unknown:
        raise ValueError(f"there is no clause {unknown[0]!r}, the clauses are {', '.join(CLAUSES)}")
    with _closing(env):
        for name, check in CLAUSES.items():
            if name not in skip:
                check(env)


@contextlib.contextmanager
def _closing(env: Env) -> Iterator[Env]:
    """Close the environment after the block; an error in the block hides an error of `close`."""
    try:
        yield env
    except BaseException:
        with contextlib.suppress(Exception):
            env.close()
        raise
    env.close()


class EnvContract(abc.ABC):
    """A base class for pytest: name your subclass `Test...` and override `make_env`.

    Every test makes a new environment. To leave out a clause, override its test.

    Examples
    --------
    >>> class TestCartPole(EnvContract):  # pytest runs its tests
    ...     def make_env(self):
    ...         return unienv.make("CartPole-v1")
    """

    @abc.abstractmethod
    def make_env(self) -> Env:
        """A new environment."""

    def _check(self, check: Clause) -> None:
        with _closing(self.make_env()) as env:
            check(env)

    def test_spaces_are_batched_already(self) -> None:
        self._check(clauses.spaces_are_batched_already)

    def test_reset_returns_values_of_the_spaces(self) -> None:
        self._check(clauses.reset_returns_values_of_the_spaces)

    def test_step_returns_values_of_the_spaces(self) -> None:
        self._check(clauses.step_returns_values_of_the_spaces)

    def test_samples_are_values_of_the_spaces(self) -> None:
        self._check(clauses.samples_are_values_of_the_spaces)

    def test_functional_reset_returns_every_slot(self) -> None:
        self._check(clauses.functional_reset_returns_every_slot)

    def test_functional_reset_compiles_where_step_does(self) -> None:
        self._check(clauses.functional_reset_compiles_where_step_does)

    def test_masked_reset_returns_the_rows_of_the_mask(self) -> None:
        self._check(clauses.masked_reset_returns_the_rows_of_the_mask)

    def test_masked_reset_leaves_the_other_slots(self) -> None:
        self._check(clauses.masked_reset_leaves_the_other_slots)

    def test_merging_after_a_masked_reset(self) -> None:
        self._check(clauses.merging_after_a_masked_reset)

    def test_seed_fixes_the_episode(self) -> None:
        self._check(clauses.seed_fixes_the_episode)

    def test_seed_fixes_the_generator(self) -> None:
        self._check(clauses.seed_fixes_the_generator)

    def test_seeds_differ(self) -> None:
        self._check(clauses.seeds_differ)

    def test_returned_data_stays(self) -> None:
        self._check(clauses.returned_data_stays)

    def test_actions_and_masks_are_the_callers(self) -> None:
        self._check(clauses.actions_and_masks_are_the_callers)

    def test_render_follows_the_mode(self) -> None:
        self._check(clauses.render_follows_the_mode)

    def test_attributes_are_found_through_the_layers(self) -> None:
        self._check(clauses.attributes_are_found_through_the_layers)

    def test_close_may_be_called_twice(self) -> None:
        self._check(clauses.close_may_be_called_twice)

    def test_seed_fixes_the_episode_in_another_instance(self) -> None:
        with _closing(self.make_env()) as env, _closing(self.make_env()) as other:
            change = difference(episode(env, seed=5), episode(other, seed=5), "episode")
            if change:
                raise EnvContractError(
                    f"two of {env!r} with one seed: found {change}; wanted the same episode from the same seed"
                )
