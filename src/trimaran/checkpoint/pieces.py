"""Which connection brings which bytes of a file. Pure state: whoever calls holds the download's lock."""

from dataclasses import dataclass

from trimaran.checkpoint.spans import Span

LEAST_PIECE, MOST_PIECE = 4 << 20, 128 << 20  # bytes: an exchange each, which costs a round trip or a few
PIECES = 64  # of a large file. They are handed out in order, so that the hash is never far behind


@dataclass
class Piece:
    """Bytes that one connection is to bring: ``start`` moves on; ``end`` None: to wherever the file ends.

    The ``lead`` asks for all that follows and learns from the answer what there is; it goes on for as long as nobody
    else brings what comes next. ``version`` is the partial file's.
    """

    start: int
    end: int | None
    version: int
    lead: bool


class Pieces:
    """What is missing of a file and nobody brings yet. Until the lead knows what there is, it works alone."""

    def __init__(self, total: int | None) -> None:
        self.total = total  # bytes of the whole file, once known
        self.known = False  # whether an answer has said what there is
        self.workers = 0
        self._open: list[Span] = []
        self._most = 1 << 30  # connections that the server is good for

    def take(self, version: int) -> Piece | None:
        """A piece to bring, if there is one; ``left`` is called when it is done with."""
        if self.workers >= self._most or (self.workers and not self.known):
            return None
        if not self.known:
            piece = Piece(0, None, version, lead=True)
        elif self._open:
            start, end = self._cut()
            piece = Piece(start, end, version, lead=False)
        else:
            return None
        self.workers += 1
        return piece

    def left(self) -> None:
        self.workers -= 1

    def share(self, lead: Piece, total: int | None, gaps: list[Span], *, together: bool) -> bool:
        """Says what there is: ``gaps`` are missing, of which the lead brings the first. True if others may help.

        ``together``: something proves that bytes of several answers are of one file.
        """
        self.known, self.total = True, total
        self._open, lead.end = [], total
        if not gaps or not together:
            return False
        self._open = gaps
        lead.end = self._cut()[1]
        return bool(self._open)

    def extend(self, piece: Piece) -> bool:
        """Lets the lead go on where nobody else does; False when its way ends here."""
        if not piece.lead or not self._open or self._open[0][0] != piece.end:
            return False
        piece.end = self._cut()[1]
        return True

    def leave(self, piece: Piece, connections: int, version: int) -> bool:
        """Leaves a piece to at most ``connections`` others; False when there are none."""
        if self.workers < 2 or piece.end is None:
            return False
        self._most = max(1, connections)
        if piece.version == version and piece.start < piece.end:
            self._open.append((piece.start, piece.end))
            self._open.sort()
        return True

    def begin_anew(self, total: int | None, *, alone: bool = False) -> None:
        """Forgets what was said of the file; ``alone``: one connection brings all of it, in order."""
        self.known, self.total, self._open = False, total, []
        if alone:
            self._most = 1

    def _cut(self) -> Span:
        start, end = self._open.pop(0)
        size = min(max(LEAST_PIECE, (self.total or 0) // PIECES), MOST_PIECE)
        if end - start > size:
            self._open.insert(0, (start + size, end))
        return start, min(end, start + size)
