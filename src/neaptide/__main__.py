"""`python -m neaptide` is the command line."""

from neaptide.cli import main

if __name__ == "__main__":
    main()
