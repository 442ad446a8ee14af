"""Write a figure with the numbers behind it and a text for those who cannot see it."""

import io
import re
from pathlib import Path
from xml.sax.saxutils import escape

import pandas as pd
from matplotlib.figure import Figure

from fedrepro.core.files import write_all
from fedrepro.plots.style import Picture, style


def save(figure: Figure, folder: Path, name: str, *, data: pd.DataFrame, alt: str) -> list[Path]:
    """Write <name>.svg, .png (160 dots per inch), .csv (four decimals) and .alt.txt; return the four paths.

    The same figure gives the same bytes: no dates, versions or random ids. The svg carries the alternative
    text as its <desc>, so that a screen reader finds it.

    Args:
        figure: what one of this package's functions returned.
        folder: made if it does not exist.
        name: file name without ending, no folders.
        data: the numbers that the figure shows.
        alt: what the figure shows, in a sentence or two.

    Raises:
        ValueError: alt is empty, data has no rows, or name is not a plain file name.
        StoreError: the disk refuses; no file is cut.
    """
    if not alt.strip():
        raise ValueError(f"alt must say what the figure {name!r} shows, got an empty text")
    if data.empty:
        raise ValueError(f"data must hold the numbers of the figure {name!r}, got an empty frame")
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"name must be letters, digits and any of _ . - without folders, got {name!r}")
    alt = " ".join(alt.split())
    svg, png = io.BytesIO(), io.BytesIO()
    with style():
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    if isinstance(figure, Picture):
        figure.alt = alt
    contents = {
        "svg": described(svg.getvalue().decode(), name, alt).encode(),
        "png": png.getvalue(),
        "csv": data.to_csv(index=False, float_format="%.4f", lineterminator="\n").encode(),
        "alt.txt": f"{alt}\n".encode(),
    }
    paths = [folder / f"{name}.{ending}" for ending in contents]
    write_all(dict(zip(paths, contents.values())))
    return paths


def described(svg: str, name: str, alt: str) -> str:
    """Return the svg text with a <title> and a <desc> as its first children, named as its label."""
    start = svg.index("<svg ")
    end = svg.index(">", start)
    label = f' role="img" aria-labelledby="{name}-title {name}-desc"'
    texts = f'\n <title id="{name}-title">{escape(name)}</title>\n <desc id="{name}-desc">{escape(alt)}</desc>'
    return svg[:end] + label + ">" + texts + svg[end + 1 :]
