"""A reader that fails in every way that the fuzzer must notice."""

import os
import sys
import zlib

from campaign.corpus.seeds import Seed, Target


def read(file):
    match zlib.crc32(file.read_bytes()) % 5:
        case 0:
            raise KeyError("gate")
        case 1:
            os.abort()
        case 2:
            while True:
                pass
        case 3:
            print("SystemError: deallocated", file=sys.stderr, flush=True)
        case _:
            raise ValueError("it is damaged")


BROKEN = Target("a.bin", read, lambda: [Seed(bytes(64))])
