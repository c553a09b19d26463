"""`python -m isthmus ...` is `isthmus ...`: for launchers that start modules."""

from isthmus.cli import main

if __name__ == "__main__":
    main()
