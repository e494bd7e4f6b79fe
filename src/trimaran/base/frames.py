"""Messages on a byte stream: before each, its length in four bytes, little-endian."""

_HEAD = 4


def frame(message: bytes) -> bytes:
    """``message`` with its length before it."""
    return len(message).to_bytes(_HEAD, "little") + message


class Unframer:
    """Cuts what arrives on a stream, in pieces of any size, back into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()  # grows in place: a long message in many pieces is not copied once for each

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes, in order."""
        rest, messages, place = self._rest, [], 0
        rest += data
        while len(rest) - place >= _HEAD:
            end = place + _HEAD + int.from_bytes(rest[place : place + _HEAD], "little")
            if end > len(rest):
                break
            messages.append(bytes(rest[place + _HEAD : end]))
            place = end
        del rest[:place]
        return messages
