"""Messages on a byte stream: before each, its length in four bytes, little-endian."""

MAX_MESSAGE = 1 << 28  # bytes; a request has some MB at most
_HEAD = 4


def frame(message: bytes) -> bytes:
    """``message``, of at most ``MAX_MESSAGE`` bytes, with its length before it."""
    assert len(message) <= MAX_MESSAGE
    return len(message).to_bytes(_HEAD, "little") + message


class Unframer:
    """Cuts what arrives on a stream, in pieces of any size, back into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()  # grows in place: a long message in many pieces is not copied once for each

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes, in order; raises ``ConnectionError`` where none can be so long."""
        rest, messages, place = self._rest, [], 0
        rest += data
        while len(rest) - place >= _HEAD:
            length = int.from_bytes(rest[place : place + _HEAD], "little")
            if length > MAX_MESSAGE:
                raise ConnectionError(f"a message of {length:,} bytes is announced: the stream is broken")
            end = place + _HEAD + length
            if end > len(rest):
                break
            messages.append(bytes(rest[place + _HEAD : end]))
            place = end
        del rest[:place]
        return messages
