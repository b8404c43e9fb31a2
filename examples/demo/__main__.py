"""`python -m demo`, with the folder `examples` on the path; `penstock demo` and `make demo` do that."""

import sys

from demo.main import main

if __name__ == "__main__":
    sys.exit(main())
