"""Bytes of a local socket through the records of a connection and back, until one of them ends."""

import contextlib
import socket
import threading

import numpy as np

from trimaran.base.errors import TransferError
from trimaran.pools.records import Records

PIECE = 1 << 16  # bytes


def pump(local: socket.socket, records: Records) -> str | None:
    """Carries both ways; returns once one side has ended: why the connection did, or None where ``local`` was closed.

    The connection is closed then, and ``local`` shut down.
    """
    why: list[str] = []

    def inwards() -> None:
        try:
            while True:
                _, data = records.read(PIECE)
                local.sendall(data.data)
        except TransferError as error:
            why.append(str(error))
        except OSError:
            pass  # nobody reads any more
        finally:
            with contextlib.suppress(OSError):
                local.shutdown(socket.SHUT_RDWR)

    reader = threading.Thread(target=inwards, name="pump", daemon=True)
    reader.start()
    try:
        while data := local.recv(PIECE):
            records.write(b"", np.frombuffer(data, np.uint8))
    except TransferError as error:
        why.append(str(error))
    except OSError:
        pass
    finally:
        records.stream.shutdown()
        reader.join()
        records.stream.close()
    return why[0] if why else None
