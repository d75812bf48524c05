"""Frames of clips of every kind, compared with the original frames."""

import itertools
import struct

import numpy as np
import pytest
from PIL import Image

from ngsan.vision import clips
from ngsan.vision.clips import find_clips, is_clip, open_clip
from ngsan.vision.frames import _decoded, decode_clip, evenly
from ngsan.vision.images import ImageError, to_square

SIZE = 64


def bars(count, height=48, width=64):
    """Numbered frames: a white bar moves from left to right over grey."""
    frames = np.full((count, height, width, 3), 60, np.uint8)
    for place in range(count):
        left = round(place / max(1, count - 1) * (width - 8))
        frames[place, :, left : left + 8] = 250
    return frames


def bar_position(frames):
    """The position of the bar in each frame, from 0 to 1."""
    light = frames[..., 0].astype(float).mean(1)
    return light.argmax(1) / (frames.shape[2] - 1)


def squares(frames):
    return np.stack([to_square(Image.fromarray(frame), SIZE) for frame in frames])


def save_moving(path, frames, **options):
    first, *rest = (Image.fromarray(frame) for frame in frames)
    first.save(path, save_all=True, append_images=rest, duration=40, **options)
    return path


def decode(path, **options):
    """Frames read in this process, where a test can change limits."""
    with path.open("rb") as file:
        return decode_clip(file, path.suffix, **options)


def save_video(path, frames, codec="mpeg4", rate=25):
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt, stream.gop_size = "yuv420p", 12
        stream.bit_rate = 4_000_000
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_frames_are_sampled_evenly():
    for count, most in itertools.product([1, 2, 7, 8, 9, 100, 101], [1, 2, 3, 8, 50]):
        found = evenly(count, most)
        assert len(found) == min(count, most)
        assert found == sorted(set(found))
        assert 0 <= found[0] <= found[-1] < count
        if most > 1:
            assert (found[0], found[-1]) == (0, count - 1)
            gaps = np.diff(found)
            assert not len(gaps) or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(
    ("name", "options"), [("a.gif", {}), ("a.png", {}), ("a.webp", {"lossless": True})]
)
def test_animated_images(tmp_path, name, options):
    frames = bars(20)
    path = save_moving(tmp_path / name, frames, **options)
    assert is_clip(path)
    found = open_clip(path, frames=5, size=SIZE)
    wanted = squares(frames[[0, 5, 10, 14, 19]])
    assert found.shape == (5, SIZE, SIZE, 3)
    assert np.abs(found.astype(int) - wanted).mean() < 4


def test_still_image_is_not_a_clip(tmp_path):
    for name in ("a.gif", "a.png", "a.webp", "a.jpg", "a.tif"):
        Image.fromarray(bars(1)[0]).save(tmp_path / name)
        assert not is_clip(tmp_path / name)
    pages = [Image.fromarray(frame) for frame in bars(3)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    assert not is_clip(tmp_path / "pages.tif")
    assert not is_clip(tmp_path / "none.gif")
    (tmp_path / "bad.gif").write_bytes(b"GIF89a")
    assert not is_clip(tmp_path / "bad.gif")
    assert is_clip("none.mp4")
    assert len(open_clip(tmp_path / "a.gif", size=SIZE)) == 1


def test_folder_of_frames_in_natural_order(tmp_path):
    frames = bars(12)
    for place, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / f"frame{place}.png")
    (tmp_path / "notes.txt").write_text("not a frame")
    (tmp_path / ".hidden.png").write_bytes(b"")
    found = open_clip(tmp_path, frames=12, size=SIZE)
    assert (found == squares(frames)).all()
    assert (open_clip(str(tmp_path), frames=2, size=SIZE) == squares(frames[[0, 11]])).all()


def test_lists_and_arrays(tmp_path):
    frames = bars(6)
    wanted = squares(frames)
    pictures = [Image.fromarray(frame) for frame in frames]
    for clip in (frames, list(frames), tuple(pictures), frames[..., 0]):
        assert (open_clip(clip, frames=8, size=SIZE) == wanted).all()


def test_find_clips_in_folders(tmp_path):
    for name in ("one/b2.jpg", "one/b10.jpg", "two/in/x.png", "videos/b.mp4", "videos/a.GIF"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "videos/notes.txt").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [str(path.relative_to(tmp_path)) for path in find_clips([tmp_path, tmp_path / "odd"])]
    assert found == ["one", "two/in", "videos/a.GIF", "videos/b.mp4", "odd"]


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        ([], "the clip: no frames"),
        ([3], "the clip: frame 0: .*not int|the clip: frame 0"),
        (b"GIF89a", "a clip must be a path.*not bytes"),
        (np.zeros((4, 4)), r"the array must be \(frames, height, width, 3\), not \(4, 4\)"),
        ("nowhere.gif", "nowhere.gif: file not found"),
        ("nowhere.mp4", "nowhere.mp4: file not found"),
    ],
)
def test_invalid_clips(clip, message):
    with pytest.raises(ImageError, match=message):
        open_clip(clip, size=SIZE)


def test_number_of_frames():
    for frames in (0, -1, clips.MAX_SAMPLED + 1):
        with pytest.raises(ValueError, match=f"frames: {frames} is not from 1"):
            open_clip(bars(3), frames=frames)


def test_bad_files(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.gif").write_bytes(save_moving(tmp_path / "a.gif", bars(20)).read_bytes()[:500])
    (tmp_path / "text.gif").write_text("not a picture")
    (tmp_path / "jpeg.gif").write_bytes(b"\xff\xd8\xff\xe0")
    for name in ("empty", "cut.gif", "text.gif", "jpeg.gif"):
        with pytest.raises(ImageError, match=name):
            open_clip(tmp_path / name, size=SIZE)
    Image.fromarray(bars(1)[0]).save(tmp_path / "empty/1.png")
    (tmp_path / "empty/2.png").write_bytes(b"no")
    with pytest.raises(ImageError, match=r"2\.png"):
        open_clip(tmp_path / "empty", size=SIZE)


def test_huge_animations_are_rejected_before_decoding(tmp_path, monkeypatch):
    header = b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0)
    frame = b"," + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0) + b"\x02\x02\x44\x01\x00"
    (tmp_path / "vast.gif").write_bytes(header + 2 * frame + b";")
    with pytest.raises(ImageError, match=r"vast\.gif: .*(65535 x 65535|too many pixels)"):
        open_clip(tmp_path / "vast.gif")
    path = save_moving(tmp_path / "many.gif", bars(30))
    monkeypatch.setattr("ngsan.vision.frames.MAX_DECODED", 30 * 48 * 64 - 1)
    with pytest.raises(ImageError, match=r"30 frames of 64 x 48 exceed"):
        decode(path, frames=6, size=SIZE)
    monkeypatch.setattr(clips, "MAX_FRAMES", 4)
    with pytest.raises(ImageError, match="5 frames exceed the limit of 4"):
        open_clip(bars(5))


# Video files


@pytest.mark.parametrize(
    ("name", "count"), [("a.mp4", 300), ("a.avi", 40), ("a.mkv", 5), ("a.MOV", 1)]
)
def test_videos(tmp_path, name, count):
    frames = bars(count)
    path = save_video(tmp_path / name, frames)
    assert is_clip(path)
    found = open_clip(path, frames=6, size=SIZE)
    assert found.shape == (min(6, count), SIZE, SIZE, 3)
    wanted = bar_position(squares(frames[evenly(count, 6)]))
    assert np.abs(bar_position(found) - wanted).max() < 0.08


def test_long_videos_are_sampled_by_seeking(tmp_path, monkeypatch):
    path = save_video(tmp_path / "a.mp4", bars(200))
    whole = open_clip(path, frames=6, size=SIZE)
    decoded = []
    monkeypatch.setattr("ngsan.vision.frames._MAX_WHOLE", 1)
    plain = _decoded
    monkeypatch.setattr(
        "ngsan.vision.frames._decoded",
        lambda *some: (decoded.append(1) or one for one in plain(*some)),
    )
    sought = decode(path, frames=6, size=SIZE)
    assert np.abs(bar_position(whole) - bar_position(sought)).max() < 0.05
    assert len(decoded) < 100


def test_invalid_videos_are_rejected(tmp_path):
    pytest.importorskip("av")
    good = save_video(tmp_path / "a.mp4", bars(20)).read_bytes()
    playlist = b"#EXTM3U\n#EXTINF:1,\n" + str(tmp_path / "a.mp4").encode() + b"\n#EXT-X-ENDLIST\n"
    contents = {
        "empty": b"",
        "text": b"this is a text and no video, whatever its name says",
        "cut": good[: len(good) // 2],
        "playlist": playlist,
        "concat": b"ffconcat version 1.0\nfile a.mp4\n",
        "zeros": bytes(10_000),
    }
    for name, content in contents.items():
        path = tmp_path / f"{name}.mp4"
        path.write_bytes(content)
        with pytest.raises(ImageError, match=rf"{name}\.mp4: "):
            open_clip(path, size=SIZE)
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(ImageError, match=r"folder\.mp4: no frames"):
        open_clip(tmp_path / "folder.mp4")


def test_audio_without_video_is_rejected(tmp_path):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=44_100)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), "fltp", "mono")
        sound.sample_rate = 44_100
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    with pytest.raises(ImageError, match="no video stream"):
        open_clip(tmp_path / "a.mp4")


def test_too_long_videos_are_rejected(tmp_path, monkeypatch):
    path = save_video(tmp_path / "a.mp4", bars(40))
    monkeypatch.setattr("ngsan.vision.frames.MAX_DECODED", 20 * 48 * 64)
    with pytest.raises(ImageError, match="more than 20 frames of 64 x 48"):
        decode(path, frames=5, size=SIZE)
    monkeypatch.setattr("ngsan.vision.frames.MAX_PIXELS", 48 * 64 - 1)
    with pytest.raises(ImageError, match="its size 64 x 48 exceeds"):
        decode(path, frames=5, size=SIZE)


def test_rotated_video_becomes_upright(tmp_path):
    """Phones store upright videos as rotated frames with a rotation tag."""
    path = save_video(tmp_path / "a.mp4", bars(10, height=32))
    content = bytearray(path.read_bytes())
    place = content.index(b"tkhd") + 4 + 40
    ones = struct.unpack(">9i", content[place : place + 36])
    assert ones == (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    turned = (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)  # a quarter clockwise
    content[place : place + 36] = struct.pack(">9i", *turned)
    path.write_bytes(content)
    found = open_clip(path, frames=10, size=SIZE)
    # The bar that moved to the right now moves down.
    light = found[..., 0].astype(float).mean(2).argmax(1)
    assert (np.diff(light) > 0).all()


def test_missing_package_raises(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    (tmp_path / "a.mp4").write_bytes(b"")
    monkeypatch.setattr("ngsan.vision.frames.import_module", missing)
    with pytest.raises(ImageError, match=r"PyAV: pip install 'ngsan\[video\]'"):
        decode(tmp_path / "a.mp4", frames=5, size=SIZE)
