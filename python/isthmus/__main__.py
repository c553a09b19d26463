"""Lets launchers that start modules run `isthmus ...` as `python -m isthmus ...`."""

from isthmus.cli.main import main

if __name__ == "__main__":
    main()
