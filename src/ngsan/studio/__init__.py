"""The studio's scenes and geometry as numbers, without torch: what the page of the server shows."""

from ngsan.studio.bias import Surfaces
from ngsan.studio.scenes import SCENE_MODELS, SceneAnswer, SceneMaps, SceneStudio, SceneThing

__all__ = ["SCENE_MODELS", "SceneAnswer", "SceneMaps", "SceneStudio", "SceneThing", "Surfaces"]
