"""Image files by image id: in tar files, as loose files, or both."""

import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ngsan.data.folder_walk import walk
from ngsan.data.ids import PICTURES, id_of_file

_NAMED = 5
_THREADS = 8


@dataclass(frozen=True)
class _Place:
    path: Path
    start: int
    size: int


class PictureStore:
    """The pictures of a folder and its tar files, which are read in place.

    Attributes:
        signature: Changes when a picture is added, removed or changes its size.

    Raises:
        ValueError: No picture was found, two have the same id, or a tar file is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ValueError(f"{folder} is not a folder of pictures or tar files")
        self._places: dict[str, _Place] = {}
        for name, place in self._find():
            identity = id_of_file(name)
            if identity in self._places:
                raise ValueError(
                    f"{folder} has two pictures of image {identity!r}: "
                    f"in {self._places[identity].path} and in {place.path}"
                )
            self._places[identity] = place
        if not self._places:
            raise ValueError(
                f"{folder} has no pictures: neither files such as 42.jpg nor .tar files of them"
            )
        digest = hashlib.sha256()
        for identity in sorted(self._places):
            digest.update(f"{identity}\0{self._places[identity].size}\n".encode())
        self.signature = digest.hexdigest()

    def _find(self) -> Iterator[tuple[str, _Place]]:
        for path in sorted(walk(self.folder)):
            if path.suffix.lower() in PICTURES and path.is_file():
                yield path.name, _Place(path, 0, path.stat().st_size)
            elif path.suffix.lower() == ".tar" and path.is_file():
                try:
                    with tarfile.open(path, "r:") as archive:
                        for member in archive:
                            if member.isfile() and Path(member.name).suffix.lower() in PICTURES:
                                place = _Place(path, member.offset_data, member.size)
                                yield Path(member.name).name, place
                except tarfile.TarError as error:
                    raise ValueError(f"{path}: damaged, or not a tar file: {error}") from error

    def __len__(self) -> int:
        """The number of pictures."""
        return len(self._places)

    def __contains__(self, image: object) -> bool:
        """Whether there is a picture of an image."""
        return image in self._places

    def ids(self) -> list[str]:
        """The images."""
        return list(self._places)

    def read(self, image: str) -> bytes:
        """The file of an image; an `OSError` if it cannot be read."""
        place = self._places[image]
        with place.path.open("rb") as file:
            content = os.pread(file.fileno(), place.size, place.start)
        if len(content) != place.size:
            raise OSError(f"{place.path} is shorter than it was: image {image!r} is cut off")
        return content

    def read_many(self, images: Sequence[str]) -> list[bytes]:
        """The files of some images, read in parallel."""
        missing = [image for image in images if image not in self._places]
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(images)} images have no picture in {self.folder}, "
                f"such as {', '.join(missing[:_NAMED])}"
            )
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(self.read, images))
