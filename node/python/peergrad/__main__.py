"""``python -m peergrad status`` and the like: the commands of ``peer``."""

import sys

from peergrad._native import command

PROGRAM = [sys.executable, "-m", "peergrad"]

sys.exit(0 if command(PROGRAM, ["python -m peergrad", *sys.argv[1:]]) else 1)
