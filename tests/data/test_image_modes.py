"""Every mode of an image, in every format that can store it, is decoded to the colours that it stands for."""

import struct

import numpy as np
import pytest
from PIL import Image, ImageMode

from common.data.folder import read_folder
from common.errors import DATA, SuiteError

SIZE = 8
STORED = {  # format → ending, the modes that it stores, and how far a decoded value may be off
    "PNG": (".png", "1 L LA P RGB RGBA I;16 I;16B", 0),
    "TIFF": (".tif", "1 L LA P PA RGB RGBX RGBA CMYK YCbCr LAB I;16 I;16B I;16L I F", 0),
    "BMP": (".bmp", "1 L P RGB RGBA", 0),
    "WEBP": (".webp", "RGB RGBX RGBA", 0),
    "PPM": (".ppm", "1 L RGB RGBA I;16 I", 0),
    "JPEG": (".jpg", "1 L RGB RGBX CMYK YCbCr", 3),  # of one colour, which it stores almost without loss
}
CASES = [(name, mode) for name, (_, modes, _) in STORED.items() for mode in modes.split()]
NOWHERE = {"HSV", "La", "RGBa", "I;16N"}  # modes for computations, which no format stores
PILLOWS = ("PA", "CMYK", "YCbCr", "LAB")  # modes that Pillow alone converts
PALETTE = np.random.default_rng(1).integers(0, 256, (256, 3), np.uint8)


def raw_of(mode, constant):
    """Return random values of an image in a mode, (SIZE, SIZE, bands), or (SIZE, SIZE) if there is one band."""
    bands, kind = len(ImageMode.getmode(mode).bands), np.dtype(ImageMode.getmode(mode).typestr)
    shape = (1, 1, bands) if constant else (SIZE, SIZE, bands)
    values = np.random.default_rng(0).integers(0, 2 if mode == "1" else 65536 if kind.itemsize > 1 else 256, shape)
    return np.broadcast_to(values, (SIZE, SIZE, bands)).astype(kind if mode != "1" else np.uint8).squeeze()


def image_of(mode, raw):
    content = np.packbits(raw, axis=1) if mode == "1" else raw
    image = Image.frombytes(mode, (SIZE, SIZE), content.tobytes())
    if mode in ("P", "PA"):
        image.putpalette(PALETTE.tobytes())
    return image


def reference(mode, raw):
    """Return the colours, (SIZE, SIZE, 3), 0 to 255, that a mode stands for. Opacity is ignored."""
    if mode in PILLOWS:
        return np.asarray(image_of(mode, raw).convert("RGB"), float)
    if mode == "P":
        return PALETTE[raw].astype(float)
    if mode in ("1", "L", "LA") or mode.startswith("I"):
        grey = raw[:, :, 0] if mode == "LA" else raw * 255 if mode == "1" else raw if mode == "L" else raw // 256
        return np.repeat(grey[:, :, None], 3, axis=2).astype(float)
    return raw[:, :, :3].astype(float)


@pytest.fixture
def decode(tmp_path):
    """decode(save, ending, **options): save an image in a folder, read the folder, and return the image's pixels."""

    def decode(save, ending, **options):
        for split in ("train", "test"):
            (tmp_path / split / "a").mkdir(parents=True)
            save(tmp_path / split / "a" / f"0{ending}", **options)
        images, _, test_images, *_ = read_folder(tmp_path, SIZE)
        assert np.array_equal(images, test_images)
        return images[0].astype(float)

    return decode


def test_every_mode_is_tested():
    assert {mode for _, mode in CASES} | NOWHERE == {*Image.MODES}


@pytest.mark.parametrize("name, mode", CASES)
def test_a_mode(name, mode, decode):
    ending, _, tolerance = STORED[name]
    raw = raw_of(mode, constant=name == "JPEG")
    options = {"lossless": True, "exact": True} if name == "WEBP" else {"quality": 100} if name == "JPEG" else {}
    if name == "TIFF" and mode in ("I", "F"):
        with pytest.raises(SuiteError, match="cannot read the image .*32 bits") as refused:
            decode(image_of(mode, raw).save, ending)
        assert refused.value.exit_code == DATA
        return
    decoded = decode(image_of(mode, raw).save, ending, format=name, **options)
    assert np.abs(decoded - reference(mode, raw)).max() <= tolerance


GREY = np.arange(SIZE * SIZE).reshape(SIZE, SIZE)


def write_12_bit_tiff(path):
    """Write GREY * 64, up to 4095, as a TIFF of 12 bits per pixel (TIFF 6.0, section 2)."""
    pixels = int("".join(f"{value:012b}" for value in 64 * GREY.ravel()), 2).to_bytes(SIZE * SIZE * 12 // 8, "big")
    long = {256: SIZE, 257: SIZE, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: SIZE, 279: len(pixels)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in long.items())
    header = struct.pack("<2sHI", b"II", 42, 8 + len(pixels))
    path.write_bytes(header + pixels + struct.pack("<H", len(long)) + entries + bytes(4))


def test_12_bits_per_pixel(decode):
    assert np.array_equal(decode(write_12_bit_tiff, ".tif")[:, :, 0], 4 * GREY)


def test_16_bits_of_which_zero_is_white(decode):
    image = Image.fromarray((1000 * GREY).astype(np.uint16))
    decoded = decode(image.save, ".tif", tiffinfo={262: 0})  # PhotometricInterpretation: WhiteIsZero
    assert np.array_equal(decoded[:, :, 0], (65535 - 1000 * GREY) // 256)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("transparency", [0, bytes(range(256))], ids=["one colour", "all colours"])
def test_a_transparent_palette(transparency, decode):
    raw = raw_of("P", constant=False)
    decoded = decode(image_of("P", raw).save, ".png", transparency=transparency)
    assert np.array_equal(decoded, reference("P", raw))


@pytest.mark.parametrize("ending", [".png", ".webp", ".tif", ".jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_upright(orientation, ending, decode):
    """orientation: of the stored rows and columns, by EXIF 2.3, section 4.6.4."""
    upright = {1: GREY, 2: GREY[:, ::-1], 3: GREY[::-1, ::-1], 4: GREY[::-1], 5: GREY.T}
    upright |= {6: GREY.T[:, ::-1], 7: GREY.T[::-1, ::-1], 8: GREY.T[::-1]}
    image, exif = Image.fromarray(np.repeat(4 * GREY[:, :, None], 3, axis=2).astype(np.uint8)), Image.Exif()
    exif[0x0112] = orientation
    decoded = decode(image.save, ending, exif=exif, **({"lossless": True} if ending == ".webp" else {"quality": 100}))
    assert np.abs(decoded[:, :, 0] - 4 * upright[orientation]).max() <= (8 if ending == ".jpg" else 0)


def test_malformed_exif_does_not_matter(decode):
    image = Image.new("RGB", (SIZE, SIZE), "white")
    assert decode(image.save, ".jpg", exif=b"Exif\0\0no TIFF").min() == 255


def test_only_the_first_of_several_images_is_decoded(decode):
    first, second = (Image.new("RGB", (SIZE, SIZE), colour) for colour in ("white", "black"))
    assert decode(first.save, ".tif", save_all=True, append_images=[second]).min() == 255


def test_a_class_of_gifs_is_not_left_out_in_silence(tmp_path):
    for split in ("train", "test"):
        for name, ending in (("cat", ".gif"), ("dog", ".png")):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("L", (SIZE, SIZE)).save(tmp_path / split / name / f"0{ending}")
    with pytest.raises(SuiteError, match=r"train/cat; none of its files .*\.png.*; convert them, or delete the folder"):
        read_folder(tmp_path, SIZE)


def test_an_image_with_the_ending_of_another_format(decode):
    with pytest.raises(SuiteError, match="cannot read the image .*0.png; UnidentifiedImageError"):
        decode(Image.new("L", (SIZE, SIZE)).save, ".png", format="GIF")
