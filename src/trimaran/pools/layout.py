"""A layout of pages as data that travels, and whether one engine's pages can become another's."""

from typing import Any

import msgspec

from trimaran.base.errors import PeerError
from trimaran.base.formats import KVFormat
from trimaran.kernels.page_layout import PageLayout

LayoutData = dict[str, Any]  # every field of ``PageLayout`` in plain values

_ABSENT = "nothing"


def layout_data(layout: PageLayout) -> LayoutData:
    data: LayoutData = msgspec.msgpack.decode(msgspec.msgpack.encode(layout))
    return data


def page_format_of(data: LayoutData) -> KVFormat:
    """The format of the pages; raises ``PeerError`` for one that is not known here."""
    try:
        return KVFormat(data.get("page_format", _ABSENT))
    except ValueError:
        raise PeerError(
            f"page format {data.get('page_format')!r} is not known here; known are {', '.join(KVFormat)}"
        ) from None


def check_layouts(giver: LayoutData, taker: LayoutData) -> None:
    """Raises ``PeerError``, naming both values, unless pages of ``giver``, converted to the format of ``taker``, are
    its pages. Formats may differ; of scales only those of the taker's format matter."""
    fmt = page_format_of(taker)
    page_format_of(giver)
    for name in sorted((giver.keys() | taker.keys()) - {"page_format"}):
        mine, theirs = giver.get(name, _ABSENT), taker.get(name, _ABSENT)
        if name == "scales":
            mine, theirs = _scales(mine).get(fmt, _ABSENT), _scales(theirs).get(fmt, _ABSENT)
        if mine != theirs:
            raise PeerError(
                f"the pages of these two engines differ in {name.replace('_', ' ')}: "
                f"{mine} where prompts are computed, {theirs} where they are decoded"
            )


def _scales(value: Any) -> dict[str, str]:
    try:
        return {str(fmt): str(digest) for fmt, digest in value}
    except (TypeError, ValueError):
        return {}
