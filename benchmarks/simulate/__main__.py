"""A rank of a `RankWorld`."""

import sys

from isthmus.benchmarks.simulate.serve import serve

if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:]))
