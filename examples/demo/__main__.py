"""`python -m demo`, with the folder `examples` on the path; `make demo` does that."""

import sys

from demo.main import main

if __name__ == "__main__":
    sys.exit(main())
