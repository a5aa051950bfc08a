"""The storage contract as tests for your own storage, with or without pytest."""

from .storage_contract import StorageContract, StorageContractError, check_storage

__all__ = ["StorageContract", "StorageContractError", "check_storage"]
