"""The command line. This module stays light: Ctrl-C is quiet only from ``main`` on."""

import signal


def main() -> None:
    """The console script. While it imports, Ctrl-C ends the process as it ends other programs, without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trimaran.cli.app import app

    signal.signal(signal.SIGINT, handler)
    app()
