"""`python -m paramsym`: the command, where its script is not on the path."""

from paramsym.cli import main

if __name__ == "__main__":
    main()
