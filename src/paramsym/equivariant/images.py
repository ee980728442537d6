"""Images for the study: reading, shifting by fractions of a pixel, second moments."""

from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from .arguments import real, whole
from .errors import EquivariantError

Images = NDArray[np.float32]


class ImageData(NamedTuple):
    """Grey images with values in [0, 1], each of shape (samples, height, width)."""

    train: Images
    test: Images


def load_images(path: str | Path) -> ImageData:
    """Images from an .npz file with arrays x_train and x_test (samples × height × width).

    Values above 1 are taken as bytes and divided by 255. Without x_test the last seventh of the
    training images is held out.

    Raises:
        EquivariantError: the file cannot be read, there is no such array, or it has another number
            of axes.
    """
    arrays = _arrays(path)
    if "x_train" not in arrays:
        raise EquivariantError(
            f"load_images({str(path)!r}): the file holds {list(arrays)}; expected an array "
            "'x_train' (and 'x_test'). Save yours with numpy.savez(path, x_train=…, x_test=…)."
        )
    train, test = arrays["x_train"], arrays.get("x_test")
    for name in ("x_train", "x_test"):
        given = arrays.get(name, train)
        if given.ndim != 3 or given.dtype.kind not in "biuf":
            raise EquivariantError(
                f"load_images({str(path)!r}): {name} has shape {given.shape} and type "
                f"{given.dtype}; expected three axes of numbers, samples × height × width. Average "
                "the colours, or reshape flat images."
            )
    if test is None:
        cut = max(len(train) * 6 // 7, 1)
        train, test = train[:cut], train[cut:]
    scale = 255 if float(train.max(initial=0)) > 1 else 1
    return ImageData((train / scale).astype(np.float32), (test / scale).astype(np.float32))


def _arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file; what NumPy says of any other file, in four parts."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile, AttributeError, TypeError) as problem:
        raise EquivariantError(
            f"load_images({str(path)!r}): the file cannot be read as images ({problem}); expected "
            "an .npz file of numbers. Save yours with numpy.savez(path, x_train=…, x_test=…)."
        ) from None


def shift_images(images: Images, shifts: NDArray[np.float64]) -> Images:
    """Images moved to the right by fractions of a pixel.

    Linear interpolation along the row; what comes in from outside repeats the border pixel
    ("nearest" fill). This is not the cyclic shift of the group: the data are only nearly invariant.

    Args:
        images: samples × height × width.
        shifts: one shift in pixels for each sample, negative to the left.
    """
    width = images.shape[2]
    where = np.clip(np.arange(width) - shifts[:, None], 0, width - 1)
    left = np.minimum(where.astype(np.intp), width - 2) if width > 1 else np.zeros_like(where, int)
    weight = (where - left)[:, None, :].astype(images.dtype)
    right = np.minimum(left + 1, width - 1)
    low = np.take_along_axis(images, left[:, None, :], axis=2)
    high = np.take_along_axis(images, right[:, None, :], axis=2)
    return low + weight * (high - low)


def randomly_shifted(images: Images, fraction: float, generator: np.random.Generator) -> Images:
    """Every image shifted once, uniformly up to a fraction of its width to either side.

    Args:
        images: samples × height × width.
        fraction: of the width; 0.2 in the published study.
        generator: of the shifts.
    """
    largest = real(fraction, "randomly_shifted(fraction=…)") * images.shape[2]
    return shift_images(images, generator.uniform(-largest, largest, len(images)))


def second_moment(images: Images, chunk: int = 10_000) -> NDArray[np.float64]:
    """E[x xᵀ] of flattened images (n × n), in float64."""
    flat = images.reshape(len(images), -1)
    chunk = whole(chunk, "second_moment(chunk=…)", low=1)
    total = np.zeros((flat.shape[1], flat.shape[1]))
    for start in range(0, len(flat), chunk):
        part = flat[start : start + chunk].astype(np.float64)
        total += part.T @ part
    return total / max(len(flat), 1)
