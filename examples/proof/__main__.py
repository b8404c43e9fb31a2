"""`python -m proof`, with the folder `examples` on the path; `make proof` does that."""

import sys

from proof.main import main

if __name__ == "__main__":
    sys.exit(main())
