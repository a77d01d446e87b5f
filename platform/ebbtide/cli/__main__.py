"""``python -m ebbtide.cli``: the same program, for where the console script is not on the path."""

from ebbtide.cli.main import main

if __name__ == "__main__":
    main()
