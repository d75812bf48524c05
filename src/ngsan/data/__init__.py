"""Data: the dataset folder, its feature store, importers, batches, and built-in scenes."""

from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter

__all__ = ["FeatureStore", "Regions", "StoreWriter"]
