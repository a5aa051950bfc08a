"""Contracts as tests, to run on classes of your own. Nothing here needs pytest, and pytest runs all of it."""

from .env_contract import EnvContract, EnvContractError, check_env

__all__ = ["EnvContract", "EnvContractError", "check_env"]
