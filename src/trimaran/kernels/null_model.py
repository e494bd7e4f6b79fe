"""What the null executor (``kernels/null.py``) plays; light to import, as it is part of every engine's options."""

import msgspec

from trimaran.base.formats import CacheGroup, HeadsCache
from trimaran.kernels.program import Program


class NullModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the null executor pretends to be.

    ``windows``: one cache group for each, ``None`` being one without a window. A step takes
    ``step_seconds + rows * token_seconds``. With ``eos_id`` set, one answer in ``eos_one_in`` is that
    token; otherwise every token of the vocabulary is as likely as any other.
    """

    vocab: int = 512
    context: int = 4096
    windows: tuple[int | None, ...] = (None,)
    step_seconds: float = 0.0
    token_seconds: float = 0.0
    eos_id: int | None = None
    eos_one_in: int = 32

    def program(self) -> Program:
        """A program without ops; a token's cache entry is its own id, which 4 bytes have room for in every format."""
        return Program(
            family="null",
            ops=(),
            weights={},
            groups=tuple(CacheGroup((HeadsCache(layers=1, kv_heads=1, head_dim=2),), w) for w in self.windows),
            vocab=self.vocab,
            hidden=1,
            context=self.context,
        )
