"""Contract tests for your own environments, to run with or without pytest."""

from .env_contract import EnvContract, EnvContractError, check_env

__all__ = ["EnvContract", "EnvContractError", "check_env"]
