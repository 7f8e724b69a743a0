"""`python -m gpucalc`."""

from gpucalc.cli import main

if __name__ == "__main__":
    main()
