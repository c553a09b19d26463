"""`python -m isthmus ...` is `isthmus ...`: for launchers that start modules."""

from isthmus.cli.main import main

if __name__ == "__main__":
    main()
