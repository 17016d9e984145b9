"""Fonts of pictures, for characters that matplotlib's font lacks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from fairseq_phrase.lab.pictures import figures
from fairseq_phrase.lab.pictures.figures import columns_of, new_figure, save, wrapped
from fairseq_phrase.lab.pictures.heat_maps import AlignmentPicture, plot_alignment


def make_font(path, name, characters):
    """Write a font in which each character is a square."""
    builder = FontBuilder(1000, isTTF=True)
    names = [".notdef", *(f"u{ord(character):04X}" for character in characters)]
    pen = TTGlyphPen(None)
    for number, point in enumerate([(0, 0), (0, 700), (700, 700), (700, 0)]):
        (pen.lineTo if number else pen.moveTo)(point)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (800, 50)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return str(path)


@pytest.fixture
def installed(monkeypatch):
    """Sets the files of the fonts that are installed in addition to matplotlib's."""
    fonts_of_matplotlib = [
        font for font in font_manager.fontManager.ttflist if "mpl-data" in font.fname
    ]
    files: list[str] = []
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts_of_matplotlib)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: files)
    figures.installed_fonts.cache_clear()
    yield files
    figures.installed_fonts.cache_clear()


def draw(text, path):
    figure = new_figure(path, (3, 2))
    axes = figure.subplots()
    axes.set_xticks([0, 1], [text, "a"])
    axes.set_title("Titel")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib names glyphs that a font lacks
        save(figure, path)
    return {label.get_text(): label.get_fontfamily() for label in axes.get_xticklabels()}


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_installed_fonts_have_what_the_usual_one_lacks(tmp_path, installed, caplog):
    (tmp_path / "damaged.ttf").write_bytes(b"no font")
    installed += [
        str(tmp_path / "damaged.ttf"),
        make_font(tmp_path / "a.ttf", "Thai Sans", "กข"),
        make_font(tmp_path / "b.ttf", "Unused Sans", "က"),
        make_font(tmp_path / "c.ttf", "Zh Serif", "ข狗"),
        make_font(tmp_path / "d.ttf", "Color Emoji", "ก狗"),
    ]
    families = draw("ก ข\u200b狗!", tmp_path / "a.png")
    assert families["ก ข\u200b狗!"] == families["a"] == ["sans-serif", "Thai Sans", "Zh Serif"]
    assert not warned(caplog)


def test_text_in_the_usual_font_is_drawn_without_a_search(tmp_path, installed, monkeypatch, caplog):
    monkeypatch.setattr(font_manager, "findSystemFonts", None)
    assert draw("Grün – Привет العربية שלום ελ\u200b", tmp_path / "a.svg")["a"] == ["sans-serif"]
    assert not warned(caplog)


@pytest.mark.parametrize("text", ["狗", "हि", "🦄"])
def test_characters_without_a_font_are_named(tmp_path, installed, caplog, text):
    installed.append(make_font(tmp_path / "a.ttf", "Useless", "က"))
    with pytest.raises(UserWarning, match="Glyph"):  # the picture has boxes
        draw(text, tmp_path / "a.png")
    (message,) = warned(caplog)
    assert f"has {len(text)} characters of a picture, such as" in message
    assert f"(U+{ord(min(text)):04X})" in message


def test_labels_of_a_matrix_have_their_fonts(tmp_path, installed):
    installed.append(make_font(tmp_path / "a.ttf", "Zh", "狗猫"))
    picture = AlignmentPicture("狗", ["狗", "b"], ["猫"], np.array([[0.4, 0.6]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_alignment(picture, tmp_path / "a.png")


def test_wide_characters_have_two_columns_and_marks_none():
    assert columns_of("a狗") == 3
    assert columns_of("กี่") == 1
    assert columns_of("") == 0
    assert wrapped("狗" * 9, 6) == "狗狗狗\n狗狗狗\n狗狗狗"
    assert wrapped("ab cd ef", 5) == "ab cd\nef"
    assert wrapped("", 5) == ""
