"""The heads of a link's records: a message, and where its pages are."""

from typing import Generic, TypeVar

import msgspec

from trimaran.pools.transfer import Answer, Count, Frame


class Freed(msgspec.Struct, frozen=True, tag="freed", array_like=True):
    """The receiver has taken out what was in a slot."""

    slot: Count


M = TypeVar("M")


class Envelope(msgspec.Struct, Generic[M], frozen=True, array_like=True):
    """The head of a record. ``size`` bytes of pages are in the record, or in ``slot`` of the receiver's memory."""

    message: M
    slot: Count | None = None
    size: Count = 0


FromSender = Envelope[Frame]
FromReceiver = Envelope[Answer | Freed]

encode = msgspec.msgpack.Encoder().encode
decode_from_sender = msgspec.msgpack.Decoder(FromSender).decode
decode_from_receiver = msgspec.msgpack.Decoder(FromReceiver).decode
