"""Data: the dataset folder, its feature store, importers, batches, and built-in scenes.

Bad input raises a `ValueError` that names the file, the place in it, and the fix.
"""

from ngsan.data.store import FeatureStore, Regions
from ngsan.data.store_writer import StoreWriter

__all__ = ["FeatureStore", "Regions", "StoreWriter"]
