"""IDX: the arrays of MNIST and its relatives, gzipped or not; a header, then the values.

Two zero bytes, the code of the element type, the number of dimensions, the lengths as big-endian
32-bit integers, the values as big-endian as well. MNIST comes as one such file for the images and
one for the labels.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multifold._measure.files import DatasetError, PathLike, Progress, existing_file

SOURCE = (
    "get the four MNIST files from a mirror (https://github.com/cvdfoundation/mnist, or "
    "https://ossci-datasets.s3.amazonaws.com/mnist/), and leave them gzipped or not."
)

_GZIP = b"\x1f\x8b"
_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True, slots=True, eq=False)
class Digit:
    """An image and its class.

    Attributes
    ----------
    image : array of shape ``(height, width)``
        Grey values from 0 to 255, uint8.
    label : int
        From 0 to 9 in MNIST.
    """

    image: np.ndarray
    label: int


def read(images: PathLike, labels: PathLike, progress: Progress | None = None) -> Iterator[Digit]:
    """Read images and labels together, one at a time, in the order of the files.

    Parameters
    ----------
    images, labels : str or path
        The two files, ``train-images-idx3-ubyte.gz`` and ``train-labels-idx1-ubyte.gz`` say.
    progress : callable, optional
        Called after each file with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once, if a file is missing or is not IDX, or if there are not as many labels as images.

    References
    ----------
    LeCun et al., Gradient-based learning applied to document recognition, Proceedings of the IEEE
    1998.
    """
    arrays = []
    done = 0
    for path in (images, labels):
        arrays.append(load(path))
        done += Path(path).stat().st_size
        if progress is not None:
            progress(done)
    pixels, classes = arrays
    if pixels.ndim < 2 or not np.prod(pixels.shape[1:]):
        raise DatasetError(f"expected images, received an array of shape {pixels.shape}.", path=images)
    if not np.isfinite(pixels).all():
        raise DatasetError("expected pixels that are numbers, received infinity or NaN.", path=images)
    if classes.shape != pixels.shape[:1]:
        raise DatasetError(
            f"expected a label for each of {len(pixels)} images, "
            f"received an array of shape {classes.shape}.",
            path=labels,
        )
    if classes.dtype.kind not in "iu" or (classes < 0).any():
        raise DatasetError("expected labels that are integers from 0 on, received others.", path=labels)
    return (Digit(image, label) for image, label in zip(pixels, classes.tolist(), strict=True))


def load(path: PathLike) -> np.ndarray:
    """Return the array of one IDX file, in the byte order of this machine.

    Raises
    ------
    DatasetError
        If there is no file, or it is not IDX, or it is shorter or longer than its header says.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "labels")
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]))
    >>> load(path)
    array([5, 0, 4], dtype=uint8)
    """
    path = existing_file(path, SOURCE)
    raw = path.read_bytes()
    if raw.startswith(_GZIP):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise DatasetError(f"expected a whole gzip file: {error}.", path=path) from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _DTYPES or len(raw) < 4 + 4 * raw[3]:
        raise DatasetError(
            f"expected the header of an IDX file, received {raw[:4].hex(' ') or 'no bytes'}.",
            SOURCE,
            path=path,
        )
    dtype = np.dtype(_DTYPES[raw[2]])
    start = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw, ">u4", raw[3], offset=4).tolist())
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) - start != expected:
        raise DatasetError(
            f"expected {expected} bytes of values for shape {shape}, received {len(raw) - start}.",
            path=path,
        )
    values = np.frombuffer(raw, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))
