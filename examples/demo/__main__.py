"""`python -m demo`, with the folder `examples` on the path; `penstock demo` and `make demo` do that."""

import sys

if __name__ == "__main__":
    try:
        from demo.main import main  # Ctrl-C may come while everything is imported

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
