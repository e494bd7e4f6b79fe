"""What stands in every answer: its id, when it was made, and which model made it."""

import hashlib
import secrets
import time
from dataclasses import dataclass

from trimaran.base.messages import Started
from trimaran.server.errors import ModelNotFoundError
from trimaran.server.openai.answers import Model, ModelList


@dataclass(frozen=True)
class Identity:
    """Of one answer. ``fingerprint`` stays the same for as long as the same seed gives the same tokens."""

    id: str
    created: int
    model: str
    fingerprint: str


class ModelCard:
    """The one model behind a server, under all names that requests may use; the first is the canonical one."""

    def __init__(self, names: tuple[str, ...], started: Started, version: str) -> None:
        self.names = names
        self.created = int(time.time())
        self._started = started
        facts = (
            version,
            started.model,
            started.digest,
            started.weight_format,
            started.kv_format,
            started.executor,
            started.isa,
        )
        self.fingerprint = "fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12]

    def identity(self, prefix: str, model: str) -> Identity:
        """For an answer to a request that names ``model``; raises ``ModelNotFoundError`` when it is not served here."""
        self.require(model)
        return Identity(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), model, self.fingerprint)

    def require(self, model: str) -> None:
        if model not in self.names:
            raise ModelNotFoundError(
                f"the model {model!r} is not served here; ask for {self.names[0]!r}", param="model"
            )

    def entry(self, name: str) -> Model:
        self.require(name)
        return Model(
            id=name,
            created=self.created,
            max_model_len=self._started.context,
            digest=self._started.digest,
            weight_format=self._started.weight_format,
            kv_format=self._started.kv_format,
        )

    def list(self) -> ModelList:
        return ModelList(data=[self.entry(name) for name in self.names])
