"""The storage contract as tests, to run on a storage of your own. Nothing here needs pytest, and pytest runs all."""

from .storage_contract import StorageContract, StorageContractError, check_storage

__all__ = ["StorageContract", "StorageContractError", "check_storage"]
