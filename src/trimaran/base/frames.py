"""Messages on a byte stream: before each, its length in four bytes, little-endian."""

_HEAD = 4


def frame(message: bytes) -> bytes:
    """``message`` with its length before it."""
    return len(message).to_bytes(_HEAD, "little") + message


class Unframer:
    """Cuts what arrives on a stream, in pieces of any size, back into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes, in order."""
        if self._rest:
            data = self._rest + data
        messages, place = [], 0
        while len(data) - place >= _HEAD:
            end = place + _HEAD + int.from_bytes(data[place : place + _HEAD], "little")
            if end > len(data):
                break
            messages.append(data[place + _HEAD : end])
            place = end
        self._rest = data[place:]
        return messages
